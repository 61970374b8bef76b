"""softorder for PyTorch: relaxations and operations as `nn.Module`s.

The operations themselves take tensors as they are: `softorder.sort(tensor, 0.1)`.
"""

from softorder.torch.modules import KNN, PowerMetric, Quantile, Rank, SoftSort, Sort, TopK

__all__ = ["KNN", "PowerMetric", "Quantile", "Rank", "SoftSort", "Sort", "TopK"]

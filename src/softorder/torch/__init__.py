"""softorder for PyTorch: relaxations and operations as `nn.Module`s, and a distribution.

The operations themselves take tensors as they are: `softorder.sort(tensor, 0.1)`.
"""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        'softorder.torch needs PyTorch; it is not installed. Run: pip install "softorder[torch]"'
    ) from error

from softorder.torch.distributions import PlackettLuce
from softorder.torch.modules import KNN, PowerMetric, Quantile, Rank, SoftSort, Sort, TopK

__all__ = ["KNN", "PlackettLuce", "PowerMetric", "Quantile", "Rank", "SoftSort", "Sort", "TopK"]

"""softorder for TensorFlow: the operations as Keras layers.

The operations themselves take tensors and variables as they are: `softorder.sort(tensor, 0.1)`.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

try:
    import tensorflow as _tensorflow  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "softorder.tensorflow needs TensorFlow; it is not installed. "
        'Run: pip install "softorder[tensorflow]"'
    ) from error

if _TYPE_CHECKING:
    from softorder.tensorflow.layers import KNN, Quantile, Rank, Sort, TopK

__all__ = ["KNN", "Quantile", "Rank", "Sort", "TopK"]


def __getattr__(name: str) -> _Any:
    # Not with the package: the operations need no Keras, which takes seconds to import.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from softorder.tensorflow import layers

    return getattr(layers, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

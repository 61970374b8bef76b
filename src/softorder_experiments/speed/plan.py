"""Which points there are: a method, an n, a number of epochs, an order of the input."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy

from softorder_experiments.config import Settings, require
from softorder_experiments.errors import UserError, look_up
from softorder_experiments.speed.frameworks import is_installed
from softorder_experiments.speed.methods import METHODS

BATCH = 20
PAPER = (100, 500, 1000, 2000, 3000, 4000)
QUICK = (100, 500, 1000)
LONG = (10**4, 10**5, 10**6)
CURVE_N = 1000
"""Where the dense methods learn for all 100 epochs, to compare curves."""
_CURVES = (CURVE_N, 4000)
_OPPOSITE = (1000, 4000)
_EPOCHS, _DENSE_EPOCHS, _LONG_EPOCHS = 100, 6, 6
# What becomes of random scores at the start; in the end they decrease.
ORDERS: dict[str, Callable[[numpy.ndarray], numpy.ndarray]] = {
    "random": lambda scores: scores,
    "opposite": lambda scores: numpy.sort(scores, axis=-1),
}
# How rows and penalty weigh. As printed, and in the authors' PyTorch: the mean over all rows, plus
# |scores|^2 / 200. Behind their learning curves (TensorFlow): the sum over rows of each one's mean,
# plus 5 |scores|^2 / n, which is the same penalty at n = 1000. By n: what the sum of all terms is
# divided by, and the decay, which is the penalty's gradient over the scores.
OBJECTIVES: dict[str, Callable[[int], tuple[int, float]]] = {
    "printed": lambda n: (BATCH * n, 0.01),
    "curves": lambda n: (n, 10 / n),
}


def _cores() -> int:
    return os.cpu_count() or 1


@dataclass(frozen=True)
class SpeedConfig(Settings):
    """One point of the experiment.

    Args:
        method: What computes P.
        n: The number of scores in a row; there are 20 rows.
        epochs: Steps, one of which is an epoch. The first is not timed.
        order: Of the scores at the start: `random`, or `opposite` to what they learn.
        objective: The loss as it is `printed`, or as it is behind the paper's learning `curves`.
        device: `cpu`, `cuda` or `mps`; the machine is part of what is measured.
        threads: Of torch; by default as many as there are cores, as JAX and TensorFlow take.
    """

    preset: str = "paper"
    data: str = "uniform"
    method: str = "softsort-square"
    n: int = 1000
    epochs: int = _EPOCHS
    order: str = "random"
    objective: str = "printed"
    device: str = "cpu"
    threads: int = field(default_factory=_cores, kw_only=True)

    def __post_init__(self) -> None:
        """Check the values that stand on their own."""
        super().__post_init__()
        look_up("method", self.method, METHODS)
        look_up("order", self.order, ORDERS)
        look_up("objective", self.objective, OBJECTIVES)
        require(self, "n", self.n >= 2, "at least 2", "--n")
        require(self, "epochs", self.epochs >= 2, "at least 2: the first is not timed")

    @property
    def label(self) -> str:
        """Return what tells this point from others, for the eye."""
        variants = (self.order, self.objective)
        unusual = [word for word in variants if word not in ("random", "printed")]
        return "-".join((self.method, f"n{self.n}", f"e{self.epochs}", *unusual, self.device))


def plan(
    *,
    quick: bool = False,
    methods: Sequence[str] = (),
    sizes: Sequence[int] = (),
    devices: Sequence[str] = ("cpu",),
    seed: int = 0,
    threads: int | None = None,
) -> list[SpeedConfig]:
    """Return the points in the order in which they are measured, small ones first.

    Args:
        quick: Only n = 100, 500, 1000.
        methods: Only these, which must be possible here; by default all.
        sizes: Only these n; by default the paper's axis, and beyond it a longer one for ours.
        devices: Where to measure; the first also has learning curves and the other order. Other
            frameworks than torch are measured on the CPU alone.
        seed: Of the scores at the start.
        threads: Of torch; by default as many as there are cores.
    """
    for name in methods:
        _must_be_possible(name, devices)
    wanted = list(methods) or list(METHODS)
    axis = tuple(sizes) or (QUICK if quick else PAPER + LONG)
    points = []
    for n in axis:
        for device in devices:
            points += [
                SpeedConfig(seed=seed, method=name, n=n, epochs=_epochs(name, n), device=device)
                for name in wanted
                if _is_tried(name, n) and _serves(device, name)
            ]
    if not (quick or sizes):
        first = [name for name in wanted if _serves(devices[0], name)]
        points += _curves(first, devices[0], seed) + _opposite(first, devices[0], seed)
    return [_with_threads(point, threads) for point in points]


def _with_threads(point: SpeedConfig, threads: int | None) -> SpeedConfig:
    """Return the point with the threads that are wanted; only torch can be told."""
    if threads is None or METHODS[point.method].framework != "torch":
        return point
    return dataclasses.replace(point, threads=threads)


def _curves(names: Sequence[str], device: str, seed: int) -> list[SpeedConfig]:
    """Return the points of the learning curves: at the larger n softorder's in torch only."""
    return [
        SpeedConfig(seed=seed, method=name, n=n, objective="curves", device=device)
        for n in _CURVES
        for name in names
        if name != "neuralsort-published" and (n == CURVE_N or _is_ours_in_torch(name))
    ]


def _opposite(names: Sequence[str], device: str, seed: int) -> list[SpeedConfig]:
    """Return the points that begin in the opposite order: what that costs, torch shows."""
    return [
        SpeedConfig(
            seed=seed, method=name, n=n, epochs=_epochs(name, n), order="opposite", device=device
        )
        for n in _OPPOSITE
        for name in names
        if METHODS[name].framework == "torch" and (n == CURVE_N or _is_ours_in_torch(name))
    ]


def _must_be_possible(name: str, devices: Sequence[str]) -> None:
    framework = look_up("method", name, METHODS).framework
    if not is_installed(framework):
        raise UserError(
            f"{framework} must be installed for {name}",
            "an environment without it",
            f'`pip install "softorder[{framework}]"` installs it',
        )
    if not any(_serves(device, name) for device in devices):
        raise UserError(
            f"device must be cpu for {name}",
            " and ".join(map(repr, devices)),
            "Methods of torch are measured on other devices too",
        )


def _serves(device: str, name: str) -> bool:
    """Tell whether a method is measured on a device."""
    return device == "cpu" or METHODS[name].framework == "torch"


def _is_ours_in_torch(name: str) -> bool:
    return METHODS[name].framework == "torch" and not METHODS[name].is_dense


def _is_tried(name: str, n: int) -> bool:
    method = look_up("method", name, METHODS)
    return n < LONG[0] or n <= method.largest


def _epochs(name: str, n: int) -> int:
    if METHODS[name].is_dense:
        return _DENSE_EPOCHS
    return _LONG_EPOCHS if n >= LONG[0] else _EPOCHS

"""The points to measure: a method, an n, a number of epochs, an order of the input."""

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
"""The n at which the dense methods also train for 100 epochs, to compare learning curves."""
_CURVES = (CURVE_N, 4000)
_OPPOSITE = (1000, 4000)
_EPOCHS, _DENSE_EPOCHS, _LONG_EPOCHS = 100, 6, 6
# The order of the initial scores; training makes them decrease.
ORDERS: dict[str, Callable[[numpy.ndarray], numpy.ndarray]] = {
    "random": lambda scores: scores,
    "opposite": lambda scores: numpy.sort(scores, axis=-1),
}
# The two losses. As printed, and in the authors' PyTorch: the mean over all terms, plus
# |scores|^2 / 200. Behind their learning curves (TensorFlow): the sum over rows of each row's mean,
# plus 5 |scores|^2 / n, which is the same penalty at n = 1000. Each function returns, for n, the
# divisor of the sum of all terms, and the decay (the penalty's gradient divided by the scores).
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
        method: The method that computes P.
        n: The number of scores in a row; there are 20 rows.
        epochs: The number of steps; one step is an epoch. The first is not timed.
        order: The order of the initial scores: `random`, or `opposite` to the target.
        objective: The loss: as `printed`, or as behind the paper's learning `curves`.
        device: `cpu`, `cuda` or `mps`.
        threads: Threads of torch (default: one per core, like JAX and TensorFlow).
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
        """Check the values that can be checked without data."""
        super().__post_init__()
        look_up("method", self.method, METHODS)
        look_up("order", self.order, ORDERS)
        look_up("objective", self.objective, OBJECTIVES)
        require(self, "n", self.n >= 2, "at least 2", "--n")
        require(self, "epochs", self.epochs >= 2, "at least 2: the first is not timed")

    @property
    def label(self) -> str:
        """Return the readable part of the point's name."""
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
    """Return the points in the order of measurement, small ones first.

    Args:
        quick: Only n = 100, 500, 1000.
        methods: Only these methods (default: all).
        sizes: Only these n (default: the paper's, and a longer axis for softorder).
        devices: The devices. The first also has learning curves and the opposite order. Frameworks
            other than torch are measured on the CPU only.
        seed: The random seed for the initial scores.
        threads: Threads of torch (default: one per core).
    """
    for name in methods:
        _check_available(name, devices)
    wanted = list(methods) or list(METHODS)
    axis = tuple(sizes) or (QUICK if quick else PAPER + LONG)
    points = []
    for n in axis:
        for device in devices:
            points += [
                SpeedConfig(seed=seed, method=name, n=n, epochs=_epochs(name, n), device=device)
                for name in wanted
                if _is_measured_at(name, n) and _runs_on(device, name)
            ]
    if not (quick or sizes):
        first = [name for name in wanted if _runs_on(devices[0], name)]
        points += _curves(first, devices[0], seed) + _opposite(first, devices[0], seed)
    return [_with_threads(point, threads) for point in points]


def _with_threads(point: SpeedConfig, threads: int | None) -> SpeedConfig:
    """Return the point with this number of threads, which only torch can be told."""
    if threads is None or METHODS[point.method].framework != "torch":
        return point
    return dataclasses.replace(point, threads=threads)


def _curves(names: Sequence[str], device: str, seed: int) -> list[SpeedConfig]:
    """Return the points of the learning curves; at the larger n, only softorder in torch."""
    return [
        SpeedConfig(seed=seed, method=name, n=n, objective="curves", device=device)
        for n in _CURVES
        for name in names
        if name != "neuralsort-published" and (n == CURVE_N or _is_ours_in_torch(name))
    ]


def _opposite(names: Sequence[str], device: str, seed: int) -> list[SpeedConfig]:
    """Return the points that start in the opposite order, in torch only."""
    return [
        SpeedConfig(
            seed=seed, method=name, n=n, epochs=_epochs(name, n), order="opposite", device=device
        )
        for n in _OPPOSITE
        for name in names
        if METHODS[name].framework == "torch" and (n == CURVE_N or _is_ours_in_torch(name))
    ]


def _check_available(name: str, devices: Sequence[str]) -> None:
    framework = look_up("method", name, METHODS).framework
    if not is_installed(framework):
        raise UserError(
            f"{framework} must be installed for {name}",
            "an environment without it",
            f'`pip install "softorder[{framework}]"` installs it',
        )
    if not any(_runs_on(device, name) for device in devices):
        raise UserError(
            f"device must be cpu for {name}",
            " and ".join(map(repr, devices)),
            "Only the methods in torch run on other devices",
        )


def _runs_on(device: str, name: str) -> bool:
    """Tell whether a method can run on a device."""
    return device == "cpu" or METHODS[name].framework == "torch"


def _is_ours_in_torch(name: str) -> bool:
    return METHODS[name].framework == "torch" and not METHODS[name].is_dense


def _is_measured_at(name: str, n: int) -> bool:
    method = look_up("method", name, METHODS)
    return n < LONG[0] or n <= method.largest


def _epochs(name: str, n: int) -> int:
    if METHODS[name].is_dense:
        return _DENSE_EPOCHS
    return _LONG_EPOCHS if n >= LONG[0] else _EPOCHS

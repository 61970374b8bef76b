"""Random cases for `fuzz.py`: everything about a case follows from one integer."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import softorder as so

SCANS = ("dense", "tiled", "portable", "native")


def bent(a, b):
    """A semi-metric of more than the difference, without cancellation: slopes are below 3."""
    return abs(a - b) * (1 + a * a / (1 + a * a + b * b))


@dataclasses.dataclass(frozen=True)
class Family:
    """A relaxation with its settings.

    Attributes:
        make: Maps tau to a relaxation.
        oracle: Its name in `tie_oracle` with its settings there, or None.
        engines: The kernels that serve it; the first is what the others are compared with.
        power: Scores a distance tau^(1 / power) apart are just told apart.
        offers: "matrix", "rank", "sort", or two of them.
        most: The largest number of items for products with the matrix.
        has_unit: Whether tau has the unit of the scores.
        looks_at_values: It cannot be compiled or vectorised.
    """

    make: Callable[[Any], Any]
    oracle: tuple[str, dict] | None
    engines: tuple[str | None, ...] = (None,)
    power: float = 1.0
    offers: tuple[str, ...] = ("matrix",)
    most: int = 400
    has_unit: bool = True
    looks_at_values: bool = False


def _softsort(metric, engines, power, oracle=None):
    make = functools.partial(so.SoftSort, metric=metric)
    return Family(make, ("softsort", oracle or {"p": power}), engines, power)


def _fast(make, name, regularization, offers):
    oracle = (f"fast_soft_{offers}_{regularization}", {})
    make = functools.partial(make, regularization=regularization)
    return Family(make, oracle, offers=(offers,))


FAMILIES = {
    "SoftSort abs": _softsort("abs", SCANS, 1.0),
    "SoftSort square": _softsort("square", SCANS, 2.0),
    "SoftSort 0.5": _softsort(0.5, SCANS[:2], 0.5),
    "SoftSort 1.5": _softsort(1.5, SCANS[:2], 1.5),
    "SoftSort 3": _softsort(3.0, SCANS[:2], 3.0),
    "SoftSort callable": _softsort(bent, SCANS[:2], 1.0, {"metric": bent}),
    "NeuralSort": Family(so.NeuralSort, ("neuralsort", {}), ("dense", "tiled", "native")),
    "OptimalTransportSort": Family(
        functools.partial(so.OptimalTransportSort, tolerance=1e-13),
        ("transport", {}),
        most=12,
        has_unit=False,
        looks_at_values=True,
    ),
    "OptimalTransportSort, 5 iterations": Family(
        functools.partial(so.OptimalTransportSort, iterations=5), None, most=40, has_unit=False
    ),
    "SoftRank": Family(so.SoftRank, ("softrank", {}), power=2.0, offers=("matrix", "rank"), most=9),
    "ApproximateRank": Family(so.ApproximateRank, ("approximate_rank", {}), offers=("rank",)),
    "FastSoftRank l2": _fast(so.FastSoftRank, "rank", "l2", "rank"),
    "FastSoftRank kl": _fast(so.FastSoftRank, "rank", "kl", "rank"),
    "FastSoftSort l2": _fast(so.FastSoftSort, "sort", "l2", "sort"),
    "FastSoftSort kl": _fast(so.FastSoftSort, "sort", "kl", "sort"),
}
# The first two are the library's heart.
_WEIGHTS = np.array([5, 5] + [1] * 4 + [4] + [1] * (len(FAMILIES) - 7), dtype=float)


def _options(case):
    return {"dim": case.dim, "descending": case.descending}


# Each maps a case, a relaxation and the arrays of a framework to an array.
PRODUCTS = {
    "sort": lambda c, how, a: so.sort(a["scores"], how, mask=a.get("mask"), **_options(c)),
    "sort by": lambda c, how, a: so.sort(
        a["values"], how, by=a["scores"], mask=a.get("mask"), **_options(c)
    ),
    "argsort": lambda c, how, a: so.argsort(a["scores"], how, mask=a.get("mask"), **_options(c)),
    "rank": lambda c, how, a: so.rank(a["scores"], how, mask=a.get("mask"), **_options(c)),
    "topk": lambda c, how, a: so.topk(
        a["scores"], c.k, how, dim=c.dim, largest=c.descending, mask=a.get("mask")
    ),
    "topk_mask": lambda c, how, a: so.topk_mask(
        a["scores"], c.k, how, dim=c.dim, largest=c.descending, mask=a.get("mask")
    ),
    "quantile": lambda c, how, a: so.quantile(a["scores"], c.q, how, dim=c.dim, mask=a.get("mask")),
    "median": lambda c, how, a: so.median(a["scores"], how, dim=c.dim, mask=a.get("mask")),
    "knn": lambda c, how, a: so.knn(a["values"], a["scores"], c.k, how, mask=a.get("mask")),
    "apply": lambda c, how, a: _made(c, how, a) @ a["values"],
    "transposed": lambda c, how, a: _made(c, how, a).T @ a["values"],
    "straight_through": lambda c, how, a: _made(c, how, a).straight_through() @ a["values"],
    "log_prob": lambda c, how, a: _made(c, how, a).log_prob(a["items"]),
    "entropy": lambda c, how, a: _made(c, how, a).entropy(),
    "matrix": lambda c, how, a: _made(c, how, a).matrix(),
    "rows": lambda c, how, a: _made(c, how, a).rows(list(c.rows)),
}
# The items stand at the case's own `dim` of the result; elsewhere they are last.
ALONG_DIM = ("sort", "sort by", "argsort", "rank", "topk", "topk_mask", "entropy")
OF_VALUES = ("apply", "transposed", "straight_through")
_SELECTING = ("topk", "topk_mask", "knn", "rows")


def _made(case, how, arrays):
    return how(arrays["scores"], dim=case.dim, mask=arrays.get("mask"))


@dataclasses.dataclass(frozen=True)
class Case:
    """One call of the library.

    Attributes:
        seed: What it was drawn from.
        family: A key of FAMILIES.
        product: A key of PRODUCTS.
        scores: (*batch, n); for "knn" the neighbours, (n, 2).
        tau: A number, or an array () or (*batch).
        values: What the product takes besides: of OF_VALUES, "sort by" and "knn" (the queries).
        mask: (*batch, n) or None.
        items: (*batch, n) a permutation, for "log_prob".
        dim: Where the items are in what the library is given.
        descending: The direction, also of `largest`.
        k: For the products that select.
        q: For "quantile".
        rows: For "rows".
        dtype: Of a comparison with float64.
        checks: What is compared besides the engines.
    """

    seed: int
    family: str
    product: str
    scores: np.ndarray
    tau: Any
    values: np.ndarray | None
    mask: np.ndarray | None
    items: np.ndarray | None
    dim: int
    descending: bool
    k: int
    q: Any
    rows: tuple[int, ...]
    dtype: str
    checks: tuple[str, ...]

    @property
    def n(self):
        return self.scores.shape[-2 if self.product == "knn" else -1]

    @property
    def batch(self):
        return () if self.product == "knn" else self.scores.shape[:-1]

    def inputs(self):
        """Return what receives gradients, as the library is given it."""
        found = {"scores": self._moved(self.scores)}
        if not isinstance(self.tau, float):
            found["tau"] = self.tau
        if self.values is not None:
            found["values"] = self._moved(self.values) if self.product == "sort by" else self.values
        return found

    def constants(self):
        """Return the other arrays, as the library is given them."""
        found = {}
        if self.mask is not None:
            found["mask"] = self._moved(self.mask)
        if self.items is not None:
            found["items"] = self._moved(self.items)
        return found

    def _moved(self, x):
        return x if self.product == "knn" else np.ascontiguousarray(np.moveaxis(x, -1, self.dim))

    def call(self, arrays):
        """Call the library with arrays of a framework, by the names of `inputs` and `constants`."""
        how = FAMILIES[self.family].make(arrays.get("tau", self.tau))
        return PRODUCTS[self.product](self, how, arrays)

    def items_last(self, y):
        """Return a result, or what is shaped like it, with the batch first and items last."""
        if self.product in ALONG_DIM:
            return np.moveaxis(y, self.dim, -1)
        return np.moveaxis(y, 0, -1) if self.product == "quantile" and np.ndim(self.q) else y

    def valid(self):
        """Return where items take part, in the shape of the scores (for "knn" (n,))."""
        shape = self.scores.shape[:1] if self.product == "knn" else self.scores.shape
        return np.ones(shape, dtype=bool) if self.mask is None else self.mask

    def __str__(self):
        """Say in a line what the case is."""
        tau = f"tau {self.tau:.3g}" if isinstance(self.tau, float) else f"tau {self.tau.shape}"
        parts = [self.family, self.product, f"scores {self.scores.shape}", tau]
        parts += [f"dim {self.dim}"] if self.dim != -1 else []
        parts += ["masked"] if self.mask is not None else []
        return ", ".join(parts)


def draw(seed):
    """Return the case of one integer."""
    rng = np.random.default_rng(seed)
    family = str(rng.choice(list(FAMILIES), p=_WEIGHTS / _WEIGHTS.sum()))
    product = _product(rng, FAMILIES[family])
    n = _number(rng, family, product)
    if n == 0 and product in _SELECTING:
        product, n = (product, 1) if product == "knn" else ("matrix", 0)
    dtype = str(
        rng.choice(["float64", "float32", "float16", "bfloat16"], p=[0.7, 0.14, 0.08, 0.08])
    )
    batch = () if n > 400 or product == "knn" else _batch(rng, n)
    magnitude = 10 ** rng.uniform(-1, 1) if dtype.endswith("16") else 10 ** rng.uniform(-8, 8)
    if dtype == "float32":
        magnitude = 10 ** rng.uniform(-4, 4)
    scores = magnitude * _standard(rng, (*batch, n, *((2,) if product == "knn" else ())))
    mask = _mask(rng, (*batch, n)) if rng.random() < 0.35 else None
    if product != "knn":
        scores = _with_ends(rng, scores, mask)
    scores = rounded(scores, dtype)
    case = Case(
        seed=seed,
        family=family,
        product=product,
        scores=scores,
        tau=1.0,
        values=rounded(_values(rng, product, batch, n, magnitude), dtype),
        mask=mask,
        items=_items(rng, scores, mask) if product == "log_prob" else None,
        dim=-1 if product == "knn" else -int(rng.integers(1, len(batch) + 2)),
        descending=bool(rng.random() < 0.5),
        k=int(rng.integers(1, n + 1)) if n else 1,
        q=[0.3, np.round(rng.random(2), 3).tolist(), [0.0, 0.5, 1.0]][rng.integers(3)],
        rows=tuple(rng.integers(-n, n, size=2).tolist()) if n else (),
        dtype=dtype,
        checks=_checks(rng),
    )
    case = dataclasses.replace(case, tau=_tau(rng, case))
    # A temperature that the lower dtype does not have.
    return case if np.all((case.tau > 0) & np.isfinite(case.tau)) else draw(seed + (1 << 40))


def rounded(x, dtype):
    """Return float64 numbers that a lower dtype has."""
    if x is None:
        return None
    return torch.tensor(x).to(getattr(torch, dtype)).double().numpy()


def _product(rng, family):
    if "matrix" in family.offers:
        return str(rng.choice(list(PRODUCTS)))
    return family.offers[0]


def _number(rng, family, product):
    most = FAMILIES[family].most
    kind = rng.choice(["small", "middle", "large", "block"], p=[0.7, 0.255, 0.04, 0.005])
    if kind == "block" and "native" in FAMILIES[family].engines and product in ("sort", "apply"):
        return int(rng.choice([4095, 4096, 4097]))
    if FAMILIES[family].offers[0] == "matrix" and (kind == "large" or most < 40):
        return int(rng.integers(0, most + 1))
    return int(rng.integers(0, {"small": 10, "middle": 41}.get(kind, 400)))


def _batch(rng, n):
    number = int(rng.choice([0, 1, 2, 3], p=[0.45, 0.35, 0.15, 0.05]))
    most = 2 if n > 40 else 4
    return tuple(rng.integers(0 if rng.random() < 0.03 else 1, most, size=number).tolist())


def _standard(rng, shape):
    """Return scores of about 1: with ties, all equal, in clusters, with an outlier, shifted."""
    kind = rng.choice(
        ["normal", "grid", "coarse", "equal", "heavy", "clusters", "outlier", "shifted"],
        p=[0.25, 0.2, 0.15, 0.03, 0.1, 0.1, 0.07, 0.1],
    )
    x = rng.normal(size=shape)
    if kind == "grid":
        x = np.round(2 * x) / 2 * rng.choice([1.0, -1.0], size=shape)
    elif kind == "coarse":
        x = rng.integers(0, 3, size=shape) * 1.0
    elif kind == "equal":
        x = np.full(shape, rng.normal())
    elif kind == "heavy":
        x = rng.standard_cauchy(size=shape)
    elif kind == "clusters":
        x = rng.integers(0, 3, size=shape) + 1e-4 * x
    elif kind == "outlier" and x.size:
        x.flat[rng.integers(x.size)] = 10 ** rng.uniform(2, 6)
    elif kind == "shifted":
        x = x + 10 ** rng.uniform(1, 5)
    return x


def _mask(rng, shape):
    share = rng.choice([0.7, 0.2, 0.0], p=[0.7, 0.2, 0.1])
    return rng.random(shape) < share


def _with_ends(rng, scores, mask):
    """Put infinities among the scores, and anything where they are masked."""
    if rng.random() < 0.2:
        ends = rng.choice([np.inf, -np.inf], size=scores.shape)
        scores = np.where(rng.random(scores.shape) < 0.25, ends, scores)
    if mask is not None and rng.random() < 0.7:
        anything = rng.choice([np.nan, np.inf, -np.inf, 0.0], size=scores.shape)
        scores = np.where(mask, scores, anything)
    return scores


def _values(rng, product, batch, n, magnitude):
    if product == "knn":
        return magnitude * _standard(rng, (int(rng.integers(1, 4)), 2))
    if product == "sort by":
        return 10 ** rng.uniform(-3, 3) * rng.normal(size=(*batch, n))
    if product not in OF_VALUES:
        return None
    shapes = [(n,), (n, 1), (n, 3), (*batch, n, 2)]
    return 10 ** rng.uniform(-3, 3) * rng.normal(size=shapes[rng.integers(4)])


def _items(rng, scores, mask):
    """Return permutations within the blocks: other ones have probability 0."""
    valid = np.ones(scores.shape, dtype=bool) if mask is None else mask
    items = np.zeros(scores.shape, dtype=np.int64)
    for b in np.ndindex(scores.shape[:-1]):
        s = np.where(np.isnan(scores[b]), 0.0, scores[b])
        block = np.where(valid[b], np.where(np.isfinite(s), 1, np.where(s > 0, 0, 2)), 3)
        mixed = rng.permutation(scores.shape[-1])
        items[b] = mixed[np.argsort(block[mixed], kind="stable")]
    return items


def spread_of(case):
    """Return the greatest difference of valid finite scores in a batch row."""
    if case.product == "knn":
        squares = knn_distances(case)
        return float(np.ptp(squares, axis=-1).max(initial=0.0)) if squares.size else 0.0
    finite = case.valid() & np.isfinite(case.scores)
    top = np.where(finite, case.scores, -np.inf).max(axis=-1, initial=-np.inf)
    bottom = np.where(finite, case.scores, np.inf).min(axis=-1, initial=np.inf)
    some = top >= bottom
    return float(
        np.where(some, np.where(some, top, 0) - np.where(some, bottom, 0), 0).max(initial=0)
    )


def knn_distances(case):
    """Return the squared distances to the valid neighbours, (q, m)."""
    points = case.scores[case.valid()]
    return ((case.values[:, None] - points) ** 2).sum(-1)


def finite_rows(case):
    """Yield the valid finite scores of each batch row, or query."""
    if case.product == "knn":
        yield from knn_distances(case)
        return
    for b in np.ndindex(case.batch):
        yield case.scores[b][case.valid()[b] & np.isfinite(case.scores[b])]


def _tau(rng, case):
    """Return a temperature in units of the spread, or of any size; a number or an array."""
    family = FAMILIES[case.family]
    narrow = case.dtype.endswith("16")
    if not family.has_unit:
        tau = 10 ** rng.uniform(-1.5, 1)
    elif narrow or case.product == "knn" or rng.random() < 0.75:
        spread = spread_of(case) or 1.0
        tau = spread**family.power * 10 ** (rng.uniform(-1.5, 1) if narrow else rng.uniform(-4, 3))
    else:
        tau = 10 ** rng.uniform(-8, 8)
    if rng.random() < 0.4:
        return float(tau)
    shape = case.batch if rng.random() < 0.6 else ()
    return rounded(tau * 10 ** rng.uniform(-0.3, 0.3, size=shape), case.dtype)


_MODES = ("no_grad", "create_graph", "vmap", "jvp", "jacrev")


def _checks(rng):
    """Return what is examined: some are slow, and rare."""
    checks = [str(rng.choice(_MODES))]
    for name, chance in (
        ("oracle", 0.6),
        ("numpy", 0.5),
        ("jax", 0.02),
        ("jax vmap", 0.005),
        ("tensorflow", 0.005),
        ("compile", 0.01),
    ):
        if rng.random() < chance:
            checks.append(name)
    return tuple(checks)


def orders_of(scores):
    """Return in how many orders tied scores can be."""
    _, counts = np.unique(scores, return_counts=True)
    return math.prod(math.factorial(c) for c in counts)

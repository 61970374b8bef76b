"""Examine a relaxation of your own: does it keep the contract of softorder?

`check_relaxation` puts a relaxation through the laws of the table `LAWS`, in that order. A law is a
short function that states itself in one sentence and examines one operation: read the laws to learn
the contract. Values are examined in NumPy, and derivatives in torch where it is installed.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

import softorder as so
from softorder import _checks

__all__ = ["LawBroken", "Report", "check_relaxation"]

# How close a result must come, relative to the largest element of what is expected: rounding may
# add up over many steps, a wrong formula is farther off.
VALUES, GRADIENTS, LIMIT = 1e-9, 1e-7, 1e-6
ROUNDING = {"float64": VALUES, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
# The defaults of gradcheck would let a derivative pass that is wrong by 1e-3.
GRADCHECK = {"eps": 1e-5, "atol": 1e-7, "rtol": 1e-6}

BATCH = np.random.default_rng(20200713).normal(size=(2, 5, 3))
SCORES = np.array([0.3, 9.0, -0.8, 1.7, -5.0, 0.4])
MASK = np.array([True, False, True, True, False, True])
SPOILED = np.where(MASK, SCORES, [0, np.nan, 0, 0, np.inf, 0])
INFINITE = np.array([0.3, np.inf, -0.8, -np.inf, 1.7, np.inf])
FINITE = np.isfinite(INFINITE)
TIED = np.array([0.5, -1.0, 0.5, 2.0, -1.0, 0.5])
TIED_PAIRS = np.array([0.5, -1.0, 0.5, 2.0, -1.0, 1.25])


class LawBroken(AssertionError):
    """A relaxation breaks a law of the contract; the message says which, where and how."""


@dataclass(frozen=True)
class Report:
    """What `check_relaxation` found: the laws that hold, and properties that were measured.

    Attributes:
        name: The class of the relaxation.
        offers: What it offers, of sort, rank and matrix.
        laws: The laws that hold, in the order in which they were examined.
        skipped: The laws that were not examined, each with the reason.
        row_stochastic: Whether the rows of the matrix sum to one; None without a matrix.
        doubly_stochastic: Whether its columns do too, within 1e-3; None without a matrix.
        smooth_at_ties: Whether first derivatives agree on both sides of a tie; None without torch.
        translation_invariant: Whether to shift all scores shifts the sort and changes nothing else.
        scale_invariant: Whether to scale all scores scales the sort and changes nothing else.
    """

    name: str
    offers: tuple[str, ...]
    laws: tuple[str, ...]
    skipped: Mapping[str, str]
    row_stochastic: bool | None
    doubly_stochastic: bool | None
    smooth_at_ties: bool | None
    translation_invariant: bool
    scale_invariant: bool

    def __str__(self) -> str:
        lines = [f"{self.name} offers {', '.join(self.offers)} and keeps {len(self.laws)} laws."]
        reasons = sorted(self.skipped, key=self.skipped.__getitem__)
        for reason, names in itertools.groupby(reasons, key=self.skipped.__getitem__):
            lines.append(f"  not examined, {reason}: {', '.join(names)}")
        answers = {True: "yes", False: "no", None: "not measured"}
        for field in dataclasses.fields(self)[4:]:
            title = field.name.replace("_", " ") + ":"
            lines.append(f"  {title:<23}{answers[getattr(self, field.name)]}")
        return "\n".join(lines)


def check_relaxation(
    relaxation: so.Relaxation,
    *,
    cold: so.Relaxation | Literal[False] | None = None,
    framework: Literal["numpy", "torch"] | None = None,
) -> Report:
    """Examine a relaxation by every law of the contract that concerns it.

    Args:
        relaxation: An object of a class that inherits from `softorder.Relaxation`.
        cold: The same relaxation close to its hard limit; False if it has none. Default: a copy
            with the field `tau` or `epsilon` at 1e-9, if it is a dataclass with such a field.
        framework: "numpy" examines values alone; "torch" examines everything in torch, for a
            relaxation that takes nothing else. Default: values in NumPy, and derivatives in torch
            if it is installed.

    Returns:
        The laws that hold, and what was measured. Print it.

    Raises:
        LawBroken: At the first law that does not hold.

    Example:
        >>> import softorder as so
        >>> from softorder.testing import check_relaxation
        >>> report = check_relaxation(so.SoftSort(tau=0.5))
        >>> report.offers, report.row_stochastic, report.doubly_stochastic
        (('sort', 'rank', 'matrix'), True, False)
    """
    _check_arguments(relaxation, framework)
    torch = _find_torch(framework)
    cold = _colder(relaxation) if cold is None else cold
    missing = {"limit": "no limit is known (pass cold=)"} if cold in (None, False) else {}
    if torch is None:
        reason = 'framework="numpy"' if framework else "torch is not installed"
        missing |= {"derivatives": reason, "gradients": reason}

    def operation(name: str, of: str = "values") -> _Operation:
        kind = _Gradient if of == "gradients" else _Operation
        how = cold if of == "limit" else relaxation
        return kind(name, how, torch, values_in_torch=framework == "torch")

    held, skipped = [], {}
    for law in LAWS:
        names = [name for name in law.operations if _offers(relaxation, name)]
        if law.of in missing or not names:
            skipped[law.name] = missing.get(law.of, "no matrix is offered")
            continue
        for name in names:
            law.examine(operation(name, law.of))
        held.append(law.name)
    offered = [operation(name) for name in MAIN if _offers(relaxation, name)]
    return _report(offered, laws=tuple(held), skipped=skipped)


# ---------------------------------------------------------------- what is examined


def _of_matrix(function: Callable[[so.SoftPermutation], Any]) -> Callable[..., Any]:
    return lambda x, how, **arguments: function(how.permutation(x, **arguments))


# Each operation, and what the last axes of its result count. One without such an axis gives what
# neither the order of the items nor masked ones change.
OPERATIONS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "sort": (so.sort, ("position",)),
    "rank": (so.rank, ("item",)),
    "matrix": (_of_matrix(lambda P: P.matrix()), ("position", "item")),
    "topk": (lambda x, how, **kw: so.topk(x, 2, how, **kw), ()),
    "topk_mask": (lambda x, how, **kw: so.topk_mask(x, 2, how, **kw), ("item",)),
    "quantile": (lambda x, how, **kw: so.quantile(x, 0.3, how, **kw), ()),
    "log_prob": (_of_matrix(lambda P: P.log_prob(P.order)), ()),
    "entropy": (_of_matrix(lambda P: P.entropy()), ("position",)),
    "argsort": (so.argsort, ("position",)),
}
MAIN = ("sort", "rank", "matrix")
EVERY = tuple(OPERATIONS)
# An argsort gives the numbers of items, which change where items are moved or left out.
ALL_BUT_ARGSORT = EVERY[:-1]


@dataclass(frozen=True)
class _Operation:
    """One operation of the relaxation that is examined: NumPy arrays in, NumPy arrays out."""

    name: str
    how: Any
    torch: Any
    values_in_torch: bool

    tolerance: ClassVar[float] = VALUES

    @property
    def axes(self) -> tuple[str, ...]:
        """What the last axes of a result count."""
        return OPERATIONS[self.name][1]

    def __call__(self, x: np.ndarray, **arguments: Any) -> Any:
        if "mask" in arguments:
            arguments["mask"] = self.array(arguments["mask"])
        return self.values(self.on(self.array(x), **arguments))

    def on(self, x: Any, **arguments: Any) -> Any:
        """Call the operation on an array as it is, of any framework."""
        return OPERATIONS[self.name][0](x, self.how, **arguments)

    def gradient(self, x: np.ndarray, loss: Callable[[Any], Any], **arguments: Any) -> np.ndarray:
        """Return the gradient of the loss of the result."""
        leaf = self.torch.tensor(x, requires_grad=True)
        if "mask" in arguments:
            arguments["mask"] = self.torch.tensor(arguments["mask"])
        return self.torch.autograd.grad(loss(self.on(leaf, **arguments)), leaf)[0].numpy()

    def array(self, x: np.ndarray) -> Any:
        """Return x in the framework in which values are examined."""
        return self.torch.tensor(x) if self.values_in_torch else x

    def values(self, y: Any) -> Any:
        """Return an array of that framework in NumPy."""
        return y.detach().numpy() if self.values_in_torch else y

    def at(self, *, items: Any, positions: Any) -> tuple[Any, ...]:
        """Return the index of these items and positions in a result."""
        places = {"item": np.asarray(items), "position": np.asarray(positions)}
        return (..., *np.ix_(*(places[axis] for axis in self.axes)))


class _Gradient(_Operation):
    """The gradient of the squares of a result; it belongs to items, whatever the result."""

    tolerance: ClassVar[float] = GRADIENTS

    @property
    def axes(self) -> tuple[str, ...]:
        return ("item",)

    def __call__(self, x: np.ndarray, **arguments: Any) -> Any:
        return self.gradient(x, lambda y: y.square().sum(), **arguments)


class _MismatchError(Exception):
    """What a law expected, and what it got."""


def _require(holds: Any, expected: str, got: object) -> None:
    if not holds:
        raise _MismatchError(expected, got)


def _close(got: Any, expected: Any, tolerance: float = VALUES, what: str = "") -> None:
    """Require equality up to rounding; exactly for zeros, infinities and NaN."""
    got, expected = np.asarray(got), np.asarray(expected)
    _require(got.shape == expected.shape, f"the shape {expected.shape}{what}", got.shape)
    scale = np.abs(expected[np.isfinite(expected)]).max(initial=0)
    wrong = ~np.isclose(got, expected, rtol=0, atol=tolerance * scale, equal_nan=True)
    for place in np.argwhere(wrong)[:1].tolist():
        here = tuple(place)
        _require(False, f"{expected[here]:.9g} at {place}{what}", f"{got[here]:.9g}")


def _uneven(y: Any) -> Any:
    """Return a loss in which each entry of a tensor has another weight."""
    return (y.flatten() * y.new_tensor(np.cos(np.arange(y.numel())))).sum()


# ---------------------------------------------------------------- shapes and dtypes


def integer_scores_are_a_type_error(f: _Operation) -> None:
    """Integer scores raise a TypeError."""
    try:
        y = f(np.array([2, 5, 4]))
    except TypeError:
        return
    _require(False, "a TypeError", _checks.describe(y))


def dtype_in_is_dtype_out(f: _Operation) -> None:
    """The result has the dtype of the scores, and differs by rounding from that in float64."""
    for dtype in (np.float64, np.float32):
        x = SCORES.astype(dtype)
        y = f(x)
        _require(y.dtype == dtype, f"dtype {np.dtype(dtype)}", f"dtype {y.dtype}")
        _close(y, f(x.astype(np.float64)), ROUNDING[y.dtype.name])


def half_precision_loses_rounding_alone(f: _Operation) -> None:
    """float16 and bfloat16 come out as they went in, ranks as float32, gradients finite."""
    for name in ("float16", "bfloat16"):
        x = f.torch.tensor(SCORES[MASK], dtype=getattr(f.torch, name), requires_grad=True)
        y = f.on(x)
        dtype = f.torch.float32 if f.name == "rank" else x.dtype
        _require(y.dtype == dtype, f"dtype {dtype}", f"dtype {y.dtype}")
        _close(y.detach().double(), f.on(x.detach().double()).detach(), ROUNDING[name])
        (g,) = f.torch.autograd.grad(y.sum(), x)
        _require(g.isfinite().all(), "finite gradients", g.tolist())


def batch_rows_are_independent_in_any_dim(f: _Operation) -> None:
    """Any batch shape and any dim: each batch row gives what it gives alone, mask and all."""
    for arrays in ({"x": BATCH}, {"x": BATCH, "mask": BATCH > -0.5}):
        rows = [{key: a[i, :, j] for key, a in arrays.items()} for i, j in np.ndindex(2, 3)]
        alone = np.stack([f(**row) for row in rows])
        for dim in range(-3, 3):
            y = f(**{key: np.moveaxis(a, 1, dim) for key, a in arrays.items()}, dim=dim)
            y = y if len(f.axes) == 2 else np.moveaxis(y, dim, -1)
            _close(y, alone.reshape(2, 3, *alone.shape[1:]), f.tolerance, f" for dim={dim}")


def empty_input_gives_empty_output(f: _Operation) -> None:
    """No items, and no batch rows, give a result that is as empty."""
    for shape in ((0,), (3, 0), (0, 4), (3, 0, 4)):
        expected = (*shape, shape[-1]) if len(f.axes) == 2 else shape
        y = f(np.zeros(shape))
        _require(y.shape == expected, f"the shape {expected} for scores of {shape}", y.shape)


def one_item_stays_as_it_is(f: _Operation) -> None:
    """One item is its own sort, has rank 1, and the matrix [[1]]."""
    x = np.array([[3.0], [-1.0]])
    expected = {"sort": x, "rank": np.ones((2, 1)), "matrix": np.ones((2, 1, 1))}
    _close(f(x), expected[f.name])


# ---------------------------------------------------------------- the matrix


def rows_are_distributions(f: _Operation) -> None:
    """Each row of P is at least 0 and sums to 1, whatever the size of the scores."""
    for size in (1.0, 1e-20, 1e20):
        y = f(size * SCORES)
        _require((y >= 0).all(), "weights of at least 0", y.min())
        _close(y.sum(-1), np.ones(6), what=f" of the row sums for scores of size {size:g}")


def order_is_the_stable_argsort(f: _Operation) -> None:
    """P.order is the exact and stable order, largest first, and P.hard() that permutation."""
    for x in (SCORES, TIED, np.zeros(4)):
        P = f.how.permutation(f.array(x))
        order = np.argsort(-x, stable=True)
        _close(f.values(P.order), order, what=" of P.order")
        _close(f.values(P.sorted), x[order], what=" of P.sorted")
        _close(f.values(P.hard().matrix()), np.eye(len(x))[order], what=" of P.hard()")


def products_are_those_of_the_matrix(f: _Operation) -> None:
    """Products, rows, logarithms and entropy of P are those of P.matrix()."""
    x, v, some = BATCH[..., 0], BATCH[0], [3, 0]
    P, p = f.how.permutation(f.array(x)), f(x)
    logarithm = np.log(np.where(p > 0, p, 1))
    in_order = np.take_along_axis(logarithm, np.argsort(-x)[..., None], -1)
    sorted, spread = (p @ x[..., None])[..., 0], (p[:, some].mT @ x[:, some, None])[..., 0]
    for what, got, expected in [
        ("P @ v", P @ f.array(v), p @ v),
        ("P.T @ v", P.T @ f.array(v), p.mT @ v),
        ("P.flip() @ v", P.flip() @ f.array(v), np.flip(p, -2) @ v),
        ("P.sort_scores()", P.sort_scores(), sorted),
        ("P.apply(x, rows=i)", P.apply(f.array(x), rows=some), sorted[:, some]),
        ("P.T.apply(x, rows=i)", P.T.apply(f.array(x[:, some]), rows=some), spread),
        ("P.rows(i)", P.rows(some), p[:, some]),
        ("P.log_prob(P.order)", P.log_prob(P.order), in_order.sum((-2, -1))),
        ("P.entropy()", P.entropy(), -(p * logarithm).sum(-1)),
    ]:
        _close(f.values(got), expected, what=f" of {what}")
    _close(np.exp(f.values(P.log_matrix())), p, what=" of exp(P.log_matrix())")


# ---------------------------------------------------------------- order


def results_count_upwards(f: _Operation) -> None:
    """A sort increases and rank 1 is the smallest; in the matrix the largest comes first."""
    x = 10 * SCORES
    y = f(x)
    upwards = {"sort": lambda: y, "rank": lambda: y[np.argsort(x)], "matrix": lambda: -(y @ x)}
    product = np.sum(upwards[f.name]() * (np.sort(x) - x.mean()))
    _require(product > 0, "a result that goes the way of the hard one", f"{y}, the other way")


def descending_reverses(f: _Operation) -> None:
    """descending=True gives the reversed sort and n + 1 - rank, or those of negated scores."""
    x = BATCH[..., 0]
    down, up, negated = f(x, descending=True), f(x), f(-x)
    negated = -negated if f.name == "sort" else negated
    if not np.allclose(down, negated, rtol=VALUES, atol=VALUES):
        _close(down, np.flip(up, -1) if f.name == "sort" else x.shape[-1] + 1 - up)


def limit_is_the_hard_operation(f: _Operation) -> None:
    """Close to its limit, each operation gives what its hard namesake gives."""
    x, order = SCORES, np.argsort(SCORES)
    ranks = np.argsort(order) + 1.0
    expected = {
        "sort": x[order],
        "rank": ranks,
        "matrix": np.eye(6)[order[::-1]],
        "topk": x[order[::-1][:2]],
        "topk_mask": (ranks > 4).astype(float),
        "quantile": np.quantile(x, 0.3),
        "argsort": order.astype(float),
    }[f.name]
    _close(f(x), expected, LIMIT)
    if f.name in ("sort", "rank"):
        down = expected[::-1] if f.name == "sort" else 7 - expected
        _close(f(x, descending=True), down, LIMIT, " for descending=True")


def items_in_another_order_change_nothing(f: _Operation) -> None:
    """To permute the items permutes what belongs to items, and leaves positions as they are."""
    x, permuted = BATCH[..., 1], [3, 0, 4, 2, 1]
    _close(f(x[:, permuted]), f(x)[f.at(items=permuted, positions=range(5))], f.tolerance)


def tied_items_are_equal(f: _Operation) -> None:
    """Tied items have equal ranks, equal columns of the matrix, and so on."""
    y = f(TIED)
    _close(y, y[f.at(items=[5, 4, 0, 3, 1, 2], positions=range(6))])


# ---------------------------------------------------------------- masks, infinities, NaN


def mask_is_removal(f: _Operation) -> None:
    """A mask gives what removing the other items would, then zeros; those may hold anything."""
    kept = f.at(items=MASK, positions=range(4))
    for direction in ({}, {"descending": True}) if f.name in ("sort", "rank") else ({},):
        y = np.array(f(SPOILED, mask=MASK, **direction))
        _close(y[kept], f(SCORES[MASK], **direction), f.tolerance)
        y[kept] = 0
        _close(y, np.zeros(y.shape), what=" past the valid items")


def without_a_valid_item_all_is_zero(f: _Operation) -> None:
    """Where no item takes part, results are zero, and a quantile is NaN."""
    y = f(SPOILED, mask=np.zeros(6, dtype=bool))
    _close(y, np.full(np.shape(y), np.nan if f.name == "quantile" else 0.0))


def infinite_items_form_blocks_of_their_own(f: _Operation) -> None:
    """Infinite items stand tied at their end, and leave finite items untouched."""
    x, y, start = INFINITE, f(INFINITE), 0
    expected, finite, ends = np.zeros_like(y), np.where(FINITE, x, 0), np.where(FINITE, 0, x)
    for block in (x == -np.inf, FINITE, x == np.inf)[:: -1 if f.name == "matrix" else 1]:
        stop = start + block.sum()
        shift = {"sort": ends[block], "rank": start, "matrix": 0}[f.name]
        expected[f.at(items=block, positions=range(start, stop))] = f(finite[block]) + shift
        start = stop
    _close(y, expected)


def nan_spoils_its_own_batch_row_alone(f: _Operation) -> None:
    """A NaN makes the results of its batch row NaN, and changes no other."""
    x = BATCH[0].T.copy()
    expected = f(x)
    x[1, 2] = expected[1] = np.nan
    _close(f(x), expected, f.tolerance)


# ---------------------------------------------------------------- derivatives


def first_derivatives_are_right(f: _Operation) -> None:
    """First derivatives are those of finite differences."""
    x = f.torch.tensor(BATCH[:, :4, 0], requires_grad=True)
    f.torch.autograd.gradcheck(f.on, x, **GRADCHECK)


def second_derivatives_are_right(f: _Operation) -> None:
    """Second derivatives are those of finite differences of the first."""
    x = f.torch.tensor(BATCH[0, :4, 0], requires_grad=True)
    y = f.on(x).detach()
    # Given here, or they would be drawn from the global source of random numbers.
    weight = y.new_tensor(np.cos(np.arange(y.numel()))).reshape(y.shape).requires_grad_()
    f.torch.autograd.gradgradcheck(f.on, x, weight, **GRADCHECK)


def _slope(f: _Operation, x: np.ndarray, move: np.ndarray, step: float) -> float:
    """Return the central difference of an uneven loss along a move."""
    ends = [_uneven(f.on(f.torch.tensor(x + d * move))).item() for d in (step, -step)]
    return (ends[0] - ends[1]) / (2 * step)


def a_tied_group_moves_as_one(f: _Operation) -> None:
    """The gradients of tied items sum to the slope of moving all of them together."""
    g = f.gradient(TIED, _uneven)
    for group in ([0, 2, 5], [1, 4]):
        move = np.zeros(6)
        move[group] = 1
        slope, total = _slope(f, TIED, move, GRADCHECK["eps"]), g[group].sum()
        right = abs(total - slope) <= 1e-6 * np.abs(g).max() + 1e-9
        _require(right, f"a sum of {slope:.9g} for the items {group}", f"{total:.9g}")


def gradients_of_tied_pairs_are_central_differences(f: _Operation) -> None:
    """The gradient at a tied pair is the mean of those of both orders: the central difference."""
    g = f.gradient(TIED_PAIRS, _uneven)
    scale = np.abs(g).max()
    for item, move in enumerate(np.eye(6)):
        near, far = (_slope(f, TIED_PAIRS, move, step) for step in (1e-5, 2e-5))
        # Where the two disagree, there is no limit to compare with.
        if abs(near - far) <= 2e-5 * scale:
            right = abs(g[item] - near) <= 1e-4 * scale + 1e-9
            _require(right, f"{near:.9g} for the item {item}", f"{g[item]:.9g}")


def derivatives_at_ties_are_finite(f: _Operation) -> None:
    """First and second derivatives at ties are finite."""
    for tied in (TIED, np.zeros(4)):
        x = f.torch.tensor(tied, requires_grad=True)
        (first,) = f.torch.autograd.grad(f.on(x).square().sum(), x, create_graph=True)
        (second,) = f.torch.autograd.grad(first.square().sum(), x)
        _require(first.isfinite().all(), "finite first derivatives", first.tolist())
        _require(second.isfinite().all(), "finite second derivatives", second.tolist())


def infinite_items_have_no_gradient(f: _Operation) -> None:
    """The gradient of an infinite score is zero, and finite ones have what they have alone."""
    first = 2 if f.name == "matrix" else 1
    finite = f.at(items=FINITE, positions=range(first, first + 3))
    expected = np.zeros(6)
    expected[FINITE] = f.gradient(INFINITE[FINITE], _uneven)
    _close(f.gradient(INFINITE, lambda y: _uneven(y[finite])), expected, GRADIENTS)


# ---------------------------------------------------------------- the table of laws


@dataclass(frozen=True)
class _Law:
    """A law, the operations it is about, and what of them it examines."""

    function: Callable[[_Operation], None]
    operations: tuple[str, ...] = MAIN
    of: Literal["values", "limit", "derivatives", "gradients"] = "values"

    @property
    def name(self) -> str:
        return self.function.__name__ + (" (gradients)" if self.of == "gradients" else "")

    def examine(self, f: _Operation) -> None:
        """Raise LawBroken unless the law holds for an operation."""
        try:
            self.function(f)
        except _MismatchError as mismatch:
            raise LawBroken(self._describe(f, *mismatch.args)) from None
        except Exception as error:
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise LawBroken(self._describe(f, "no exception", text[:400])) from error

    def _describe(self, f: _Operation, expected: str, got: object) -> str:
        head = f"{type(f.how).__name__} breaks the law {self.name} in {f.name}."
        read = f"Read softorder.testing.{self.function.__name__}."
        seen = _checks.message(f"Expected {expected}", got, read)
        return f"{head} {self.function.__doc__}\n{seen}"


# The first that is broken is reported, so what others build on comes first.
LAWS = (
    _Law(integer_scores_are_a_type_error),
    _Law(dtype_in_is_dtype_out),
    _Law(batch_rows_are_independent_in_any_dim),
    _Law(empty_input_gives_empty_output),
    _Law(rows_are_distributions, ("matrix",)),
    _Law(order_is_the_stable_argsort, ("matrix",)),
    _Law(products_are_those_of_the_matrix, ("matrix",)),
    _Law(results_count_upwards),
    _Law(descending_reverses, ("sort", "rank")),
    _Law(limit_is_the_hard_operation, (*EVERY[:6], "argsort"), "limit"),
    _Law(one_item_stays_as_it_is),
    _Law(items_in_another_order_change_nothing, ALL_BUT_ARGSORT),
    _Law(tied_items_are_equal),
    _Law(mask_is_removal, ALL_BUT_ARGSORT),
    _Law(without_a_valid_item_all_is_zero, EVERY),
    _Law(infinite_items_form_blocks_of_their_own),
    _Law(nan_spoils_its_own_batch_row_alone, EVERY),
    _Law(first_derivatives_are_right, EVERY, "derivatives"),
    _Law(second_derivatives_are_right, EVERY, "derivatives"),
    _Law(a_tied_group_moves_as_one, MAIN, "derivatives"),
    _Law(gradients_of_tied_pairs_are_central_differences, MAIN, "derivatives"),
    _Law(derivatives_at_ties_are_finite, EVERY, "derivatives"),
    _Law(infinite_items_have_no_gradient, MAIN, "derivatives"),
    _Law(half_precision_loses_rounding_alone, MAIN, "derivatives"),
    _Law(batch_rows_are_independent_in_any_dim, MAIN, "gradients"),
    _Law(items_in_another_order_change_nothing, ALL_BUT_ARGSORT, "gradients"),
    _Law(mask_is_removal, ALL_BUT_ARGSORT, "gradients"),
    _Law(without_a_valid_item_all_is_zero, MAIN, "gradients"),
    _Law(nan_spoils_its_own_batch_row_alone, EVERY, "gradients"),
)


# ---------------------------------------------------------------- around the laws


def _check_arguments(relaxation: Any, framework: Any) -> None:
    if not isinstance(relaxation, so.Relaxation) or not any(_offers(relaxation, f) for f in MAIN):
        raise TypeError(
            _checks.message(
                "relaxation must be an object of a class that inherits from softorder.Relaxation "
                "and has at least one of permutation, rank and sort",
                _checks.describe(relaxation),
                "The class softorder.Relaxation says what they take.",
            )
        )
    if framework is not None:
        fix = "Leave it out for values in NumPy and derivatives in torch."
        _checks.check_choice(framework, {"numpy": 0, "torch": 0}, "framework", fix)


def _offers(relaxation: Any, operation: str) -> bool:
    own = operation in ("sort", "rank") and hasattr(relaxation, operation)
    return own or hasattr(relaxation, "permutation")


def _find_torch(framework: str | None) -> Any:
    """Return torch; None if it is not wanted, or not there and not asked for by name."""
    if framework == "numpy":
        return None
    try:
        import torch
    except ImportError:
        if framework == "torch":
            raise
        return None
    return torch


def _colder(relaxation: Any) -> Any:
    """Return the relaxation close to its hard limit; None if its temperature is not known."""
    for temperature in ("tau", "epsilon"):
        if temperature in getattr(relaxation, "__dataclass_fields__", ()):
            return dataclasses.replace(relaxation, **{temperature: 1e-9})
    return None


def _report(offered: list[_Operation], **found: Any) -> Report:
    """Measure the properties of a relaxation that keeps the laws."""
    x, results = BATCH[..., 2], {f.name: f(BATCH[..., 2]) for f in offered}

    def follow(change: Callable[[Any], Any]) -> bool:
        expected = {name: change(y) if name == "sort" else y for name, y in results.items()}
        return all(np.allclose(f(change(x)), expected[f.name], atol=1e-6) for f in offered)

    def sum_to_one(axis: int) -> bool | None:
        matrix = results.get("matrix")
        return None if matrix is None else np.allclose(matrix.sum(axis), 1, rtol=0, atol=1e-3)

    return Report(
        name=type(offered[0].how).__name__,
        offers=tuple(results),
        row_stochastic=sum_to_one(-1),
        doubly_stochastic=sum_to_one(-2),
        smooth_at_ties=all(map(_is_smooth, offered)) if offered[0].torch else None,
        translation_invariant=follow(lambda x: x + 2.5),
        scale_invariant=follow(lambda x: 2.5 * x),
        **found,
    )


def _is_smooth(f: _Operation) -> bool:
    """Tell whether first derivatives on both sides of a tie approach each other there.

    The difference goes like the distance for a smooth function, and like a power of it for one
    like |x|^1.5; a jump stays as it is.
    """

    def jacobian(gap: float) -> Any:
        x = f.torch.tensor([0.4, -0.7, 0.4 + gap, 1.3], dtype=f.torch.float64)
        return f.torch.autograd.functional.jacobian(f.on, x)

    far, near = (abs(jacobian(gap) - jacobian(-gap)).max().item() for gap in (1e-4, 1e-6))
    return near <= max(far / 3, 1e-8 * abs(jacobian(1e-4)).max().item())

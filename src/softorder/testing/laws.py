"""The laws that every relaxation keeps, each a function that examines one operation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from softorder import _messages
from softorder.testing._examined import (
    ALL_BUT_ARGSORT,
    BATCH,
    EVERY,
    FINITE,
    GRADCHECK,
    GRADIENTS,
    INFINITE,
    LIMIT,
    MAIN,
    MASK,
    MASKED_NAN,
    ROUNDING,
    SCORES,
    TIED,
    TIED_PAIRS,
    VALUES,
    MismatchError,
    Operation,
    close,
    require,
    uneven,
)


class LawBroken(AssertionError):
    """A relaxation breaks a law of the contract; the message says which, where and how."""


# ---------------------------------------------------------------- shapes and dtypes


def integer_scores_are_a_type_error(f: Operation) -> None:
    """Integer scores raise a TypeError."""
    try:
        y = f(np.array([2, 5, 4]))
    except TypeError:
        return
    require(False, "a TypeError", _messages.describe(y))


def dtype_in_is_dtype_out(f: Operation) -> None:
    """The result has the dtype of the scores, and differs by rounding from that in float64."""
    for dtype in (np.float64, np.float32):
        x = SCORES.astype(dtype)
        y = f(x)
        require(y.dtype == dtype, f"dtype {np.dtype(dtype)}", f"dtype {y.dtype}")
        close(y, f(x.astype(np.float64)), ROUNDING[y.dtype.name])


def half_precision_loses_rounding_alone(f: Operation) -> None:
    """float16 and bfloat16 come out as they went in, ranks as float32, gradients finite."""
    for name in ("float16", "bfloat16"):
        x = f.torch.tensor(SCORES[MASK], dtype=getattr(f.torch, name), requires_grad=True)
        y = f.on(x)
        dtype = f.torch.float32 if f.name == "rank" else x.dtype
        require(y.dtype == dtype, f"dtype {dtype}", f"dtype {y.dtype}")
        close(y.detach().double(), f.on(x.detach().double()).detach(), ROUNDING[name])
        (g,) = f.torch.autograd.grad(y.sum(), x)
        require(g.isfinite().all(), "finite gradients", g.tolist())


def batch_rows_are_independent_in_any_dim(f: Operation) -> None:
    """Any batch shape and any dim: each batch row gives what it gives alone, mask and all."""
    for arrays in ({"x": BATCH}, {"x": BATCH, "mask": BATCH > -0.5}):
        rows = [{key: a[i, :, j] for key, a in arrays.items()} for i, j in np.ndindex(2, 3)]
        alone = np.stack([f(**row) for row in rows])
        for dim in range(-3, 3):
            y = f(**{key: np.moveaxis(a, 1, dim) for key, a in arrays.items()}, dim=dim)
            y = y if len(f.axes) == 2 else np.moveaxis(y, dim, -1)
            close(y, alone.reshape(2, 3, *alone.shape[1:]), f.tolerance, f" for dim={dim}")


def empty_input_gives_empty_output(f: Operation) -> None:
    """No items, and no batch rows, give a result that is as empty."""
    for shape in ((0,), (3, 0), (0, 4), (3, 0, 4)):
        expected = (*shape, shape[-1]) if len(f.axes) == 2 else shape
        y = f(np.zeros(shape))
        require(y.shape == expected, f"the shape {expected} for scores of {shape}", y.shape)


def one_item_stays_as_it_is(f: Operation) -> None:
    """One item is its own sort, has rank 1, and the matrix [[1]]."""
    x = np.array([[3.0], [-1.0]])
    expected = {"sort": x, "rank": np.ones((2, 1)), "matrix": np.ones((2, 1, 1))}
    close(f(x), expected[f.name])


# ---------------------------------------------------------------- the matrix


def rows_are_distributions(f: Operation) -> None:
    """Each row of P is at least 0 and sums to 1, whatever the size of the scores."""
    for size in (1.0, 1e-20, 1e20):
        y = f(size * SCORES)
        require((y >= 0).all(), "weights of at least 0", y.min())
        close(y.sum(-1), np.ones(6), what=f" of the row sums for scores of size {size:g}")


def order_is_the_stable_argsort(f: Operation) -> None:
    """P.order is the exact and stable order, largest first, and P.hard() that permutation."""
    for x in (SCORES, TIED, np.zeros(4)):
        P = f.how.permutation(f.array(x))
        order = np.argsort(-x, stable=True)
        close(f.values(P.order), order, what=" of P.order")
        close(f.values(P.sorted), x[order], what=" of P.sorted")
        close(f.values(P.hard().matrix()), np.eye(len(x))[order], what=" of P.hard()")


def products_are_those_of_the_matrix(f: Operation) -> None:
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
        close(f.values(got), expected, what=f" of {what}")
    close(np.exp(f.values(P.log_matrix())), p, what=" of exp(P.log_matrix())")


# ---------------------------------------------------------------- order


def results_count_upwards(f: Operation) -> None:
    """A sort increases and rank 1 is the smallest; in the matrix the largest comes first."""
    x = 10 * SCORES
    y = f(x)
    upwards = {"sort": lambda: y, "rank": lambda: y[np.argsort(x)], "matrix": lambda: -(y @ x)}
    product = np.sum(upwards[f.name]() * (np.sort(x) - x.mean()))
    require(product > 0, "a result that goes the way of the hard one", f"{y}, the other way")


def descending_reverses(f: Operation) -> None:
    """descending=True gives the reversed sort and n + 1 - rank, or those of negated scores."""
    x = BATCH[..., 0]
    down, up, negated = f(x, descending=True), f(x), f(-x)
    negated = -negated if f.name == "sort" else negated
    if not np.allclose(down, negated, rtol=VALUES, atol=VALUES):
        close(down, np.flip(up, -1) if f.name == "sort" else x.shape[-1] + 1 - up)


def limit_is_the_hard_operation(f: Operation) -> None:
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
    close(f(x), expected, LIMIT)
    if f.name in ("sort", "rank"):
        down = expected[::-1] if f.name == "sort" else 7 - expected
        close(f(x, descending=True), down, LIMIT, " for descending=True")


def items_in_another_order_change_nothing(f: Operation) -> None:
    """To permute the items permutes what belongs to items, and leaves positions as they are."""
    x, permuted = BATCH[..., 1], [3, 0, 4, 2, 1]
    close(f(x[:, permuted]), f(x)[f.at(items=permuted, positions=range(5))], f.tolerance)


def tied_items_are_equal(f: Operation) -> None:
    """Tied items have equal ranks, equal columns of the matrix, and so on."""
    y = f(TIED)
    close(y, y[f.at(items=[5, 4, 0, 3, 1, 2], positions=range(6))])


# ---------------------------------------------------------------- masks, infinities, NaN


def mask_is_removal(f: Operation) -> None:
    """A mask gives what removing the other items would, then zeros; those may hold anything."""
    valid = f.at(items=MASK, positions=range(4))
    for direction in ({}, {"descending": True}) if f.name in ("sort", "rank") else ({},):
        y = np.array(f(MASKED_NAN, mask=MASK, **direction))
        close(y[valid], f(SCORES[MASK], **direction), f.tolerance)
        y[valid] = 0
        close(y, np.zeros(y.shape), what=" past the valid items")


def without_a_valid_item_all_is_zero(f: Operation) -> None:
    """Where no item takes part, results are zero, and a quantile is NaN."""
    y = f(MASKED_NAN, mask=np.zeros(6, dtype=bool))
    close(y, np.full(np.shape(y), np.nan if f.name == "quantile" else 0.0))


def infinite_items_form_blocks_of_their_own(f: Operation) -> None:
    """Infinite items stand tied at their end, and leave finite items untouched."""
    x, y, start = INFINITE, f(INFINITE), 0
    expected, finite, ends = np.zeros_like(y), np.where(FINITE, x, 0), np.where(FINITE, 0, x)
    for block in (x == -np.inf, FINITE, x == np.inf)[:: -1 if f.name == "matrix" else 1]:
        stop = start + block.sum()
        shift = {"sort": ends[block], "rank": start, "matrix": 0}[f.name]
        expected[f.at(items=block, positions=range(start, stop))] = f(finite[block]) + shift
        start = stop
    close(y, expected)


def nan_spoils_its_own_batch_row_alone(f: Operation) -> None:
    """A NaN makes the results of its batch row NaN, and changes no other."""
    x = BATCH[0].T.copy()
    expected = f(x)
    x[1, 2] = expected[1] = np.nan
    close(f(x), expected, f.tolerance)


# ---------------------------------------------------------------- derivatives


def first_derivatives_are_right(f: Operation) -> None:
    """First derivatives are those of finite differences."""
    x = f.torch.tensor(BATCH[:, :4, 0], requires_grad=True)
    f.torch.autograd.gradcheck(f.on, x, **GRADCHECK)


def second_derivatives_are_right(f: Operation) -> None:
    """Second derivatives are those of finite differences of the first."""
    x = f.torch.tensor(BATCH[0, :4, 0], requires_grad=True)
    y = f.on(x).detach()
    # Given here, or they would be drawn from the global source of random numbers.
    weight = y.new_tensor(np.cos(np.arange(y.numel()))).reshape(y.shape).requires_grad_()
    f.torch.autograd.gradgradcheck(f.on, x, weight, **GRADCHECK)


def _slope(f: Operation, x: np.ndarray, move: np.ndarray, step: float) -> float:
    """Return the central difference of an uneven loss along a move."""
    ends = [uneven(f.on(f.torch.tensor(x + d * move))).item() for d in (step, -step)]
    return (ends[0] - ends[1]) / (2 * step)


def a_tied_group_moves_as_one(f: Operation) -> None:
    """The gradients of tied items sum to the slope of moving all of them together."""
    g = f.gradient(TIED, uneven)
    for group in ([0, 2, 5], [1, 4]):
        move = np.zeros(6)
        move[group] = 1
        slope, total = _slope(f, TIED, move, GRADCHECK["eps"]), g[group].sum()
        right = abs(total - slope) <= 1e-6 * np.abs(g).max() + 1e-9
        require(right, f"a sum of {slope:.9g} for the items {group}", f"{total:.9g}")


def gradients_of_tied_pairs_are_central_differences(f: Operation) -> None:
    """The gradient at a tied pair is the mean of those of both orders: the central difference."""
    g = f.gradient(TIED_PAIRS, uneven)
    scale = np.abs(g).max()
    for item, move in enumerate(np.eye(6)):
        near, far = (_slope(f, TIED_PAIRS, move, step) for step in (1e-5, 2e-5))
        # Where the two disagree, there is no limit to compare with.
        if abs(near - far) <= 2e-5 * scale:
            right = abs(g[item] - near) <= 1e-4 * scale + 1e-9
            require(right, f"{near:.9g} for the item {item}", f"{g[item]:.9g}")


def derivatives_at_ties_are_finite(f: Operation) -> None:
    """First and second derivatives at ties are finite."""
    for tied in (TIED, np.zeros(4)):
        x = f.torch.tensor(tied, requires_grad=True)
        (first,) = f.torch.autograd.grad(f.on(x).square().sum(), x, create_graph=True)
        (second,) = f.torch.autograd.grad(first.square().sum(), x)
        require(first.isfinite().all(), "finite first derivatives", first.tolist())
        require(second.isfinite().all(), "finite second derivatives", second.tolist())


def infinite_items_have_no_gradient(f: Operation) -> None:
    """The gradient of an infinite score is zero, and finite ones have what they have alone."""
    first = 2 if f.name == "matrix" else 1
    finite = f.at(items=FINITE, positions=range(first, first + 3))
    expected = np.zeros(6)
    expected[FINITE] = f.gradient(INFINITE[FINITE], uneven)
    close(f.gradient(INFINITE, lambda y: uneven(y[finite])), expected, GRADIENTS)


# ---------------------------------------------------------------- the table of laws


@dataclass(frozen=True)
class Law:
    """A law, the operations it concerns, and which of their results it examines."""

    function: Callable[[Operation], None]
    operations: tuple[str, ...] = MAIN
    of: Literal["values", "limit", "derivatives", "gradients"] = "values"

    @property
    def name(self) -> str:
        """What a report calls the law."""
        return self.function.__name__ + (" (gradients)" if self.of == "gradients" else "")

    def examine(self, f: Operation) -> None:
        """Raise LawBroken unless the law holds for an operation."""
        try:
            self.function(f)
        except MismatchError as mismatch:
            raise LawBroken(self._describe(f, *mismatch.args)) from None
        except Exception as error:
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise LawBroken(self._describe(f, "no exception", text[:400])) from error

    def _describe(self, f: Operation, expected: str, got: object) -> str:
        head = f"{type(f.how).__name__} breaks the law {self.name} in {f.name}."
        read = f"Read softorder.testing.laws.{self.function.__name__}."
        seen = _messages.message(f"Expected {expected}", got, read)
        return f"{head} {self.function.__doc__}\n{seen}"


# The first that is broken is reported, so what others build on comes first.
LAWS = (
    Law(integer_scores_are_a_type_error),
    Law(dtype_in_is_dtype_out),
    Law(batch_rows_are_independent_in_any_dim),
    Law(empty_input_gives_empty_output),
    Law(rows_are_distributions, ("matrix",)),
    Law(order_is_the_stable_argsort, ("matrix",)),
    Law(products_are_those_of_the_matrix, ("matrix",)),
    Law(results_count_upwards),
    Law(descending_reverses, ("sort", "rank")),
    Law(limit_is_the_hard_operation, (*EVERY[:6], "argsort"), "limit"),
    Law(one_item_stays_as_it_is),
    Law(items_in_another_order_change_nothing, ALL_BUT_ARGSORT),
    Law(tied_items_are_equal),
    Law(mask_is_removal, ALL_BUT_ARGSORT),
    Law(without_a_valid_item_all_is_zero, EVERY),
    Law(infinite_items_form_blocks_of_their_own),
    Law(nan_spoils_its_own_batch_row_alone, EVERY),
    Law(first_derivatives_are_right, EVERY, "derivatives"),
    Law(second_derivatives_are_right, EVERY, "derivatives"),
    Law(a_tied_group_moves_as_one, MAIN, "derivatives"),
    Law(gradients_of_tied_pairs_are_central_differences, MAIN, "derivatives"),
    Law(derivatives_at_ties_are_finite, EVERY, "derivatives"),
    Law(infinite_items_have_no_gradient, MAIN, "derivatives"),
    Law(half_precision_loses_rounding_alone, MAIN, "derivatives"),
    Law(batch_rows_are_independent_in_any_dim, MAIN, "gradients"),
    Law(items_in_another_order_change_nothing, ALL_BUT_ARGSORT, "gradients"),
    Law(mask_is_removal, ALL_BUT_ARGSORT, "gradients"),
    Law(without_a_valid_item_all_is_zero, MAIN, "gradients"),
    Law(nan_spoils_its_own_batch_row_alone, EVERY, "gradients"),
)

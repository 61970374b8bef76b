"""The contract (README) where the laws of `softorder.testing` cannot examine it.

The laws examine every relaxation in all that it offers (testing/test_laws.py). Here are the types
and messages of torch, strides, large batches, and the operations that the laws leave out: every
relaxation in one operation, and SoftSort in every operation (see catalog.py).
"""

import itertools

import numpy as np
import pytest
import torch
from torch.func import jvp

import softorder as so
from catalog import (
    BY_ITEM,
    BY_POSITION,
    EVERY_OPERATION,
    OF_SCORES,
    OPERATIONS,
    R_PLUS_O,
    REDUCING,
    SELECTING,
    cold,
    dtype_of,
    every_operation,
    every_pair,
    every_relaxation,
    gradient,
    offers,
    with_matrix,
)
from tolerances import DIFFERENCES, GRADIENTS, LAST_DIGITS, LIMIT, LINEAR, VALUES, assert_close

pytestmark = pytest.mark.usefixtures("small_tiles")

TIED = torch.tensor([0.5, -1.0, 0.5, 2.0, -1.0, 0.5], dtype=torch.float64)
# Functions of the scores that do not tell which item has which.
_SYMMETRIC = [*BY_POSITION.values(), *SELECTING.values(), *REDUCING.values()]
SYMMETRIC = [pair for pair in R_PLUS_O if pair.values[1] in _SYMMETRIC]
ALL_BUT_ARGSORT = [pair for pair in EVERY_OPERATION if pair.values[1] is not so.argsort]


@pytest.fixture
def x(generator):
    return torch.randn(2, 6, 3, generator=generator, dtype=torch.float64)


# ---------------------------------------------------------------- shapes and dtypes


@every_operation
def test_any_batch_shape_and_any_dim(how, operation, x):
    for dim, i, j in itertools.product(range(-3, 3), range(2), range(3)):
        y = operation(x.movedim(1, dim), how, dim=dim)
        alone = operation(x[i, :, j], how)
        if operation in REDUCING.values():
            assert_close(y[..., i, j], alone, VALUES)  # several quantiles come first
        else:
            assert_close(y.movedim(dim, -1)[i, j], alone, VALUES)


@every_pair
def test_thousands_of_batch_rows(how, operation, generator):
    x = torch.randn(5000, 6, generator=generator, dtype=torch.float64)
    y, some = operation(x, how), torch.tensor([0, 1, 2500, 4999])
    batch = 1 if operation is OPERATIONS["quantiles"] else 0
    assert_close(y.index_select(batch, some), operation(x[some], how), VALUES)


@every_operation
def test_an_empty_batch(how, operation):
    for shape in ((0, 4), (3, 0, 4), (0, 2, 4)):
        y = operation(torch.zeros(shape), how)
        assert 0 in y.shape
        assert y.dtype == torch.float32


@every_relaxation
def test_no_items_at_all(how, operation):
    for shape in ((0,), (3, 0)):
        x = torch.zeros(shape, requires_grad=True)
        y = operation(x, how)
        assert y.shape == shape
        y.sum().backward()
        assert x.grad.shape == shape


@with_matrix
def test_no_items_at_all_in_the_matrix(how):
    P = how(torch.zeros(2, 0))
    assert P.matrix().shape == (2, 0, 0)
    assert P.entropy().shape == (2, 0)
    assert torch.equal(P.log_prob(P.order), torch.zeros(2))
    assert (P @ torch.zeros(0, 4)).shape == (2, 0, 4)
    assert (P.hard().T @ torch.zeros(0)).shape == (2, 0)
    assert torch.isnan(so.quantile(torch.zeros(2, 0), [0.1, 0.2], how)).all()


@with_matrix
def test_one_item(how):
    x = torch.tensor([[3.0], [-1.0]], dtype=torch.float64, requires_grad=True)
    assert torch.equal(how(x).matrix().detach(), torch.ones(2, 1, 1, dtype=torch.float64))
    assert torch.equal(so.sort(x, how).detach(), x.detach())
    assert torch.equal(so.rank(x, how).detach(), torch.ones(2, 1, dtype=torch.float64))
    assert torch.equal(so.median(x, how).detach(), x[:, 0].detach())
    assert torch.equal(gradient(lambda x: so.sort(x, how), x, 1.0), torch.ones(2, 1).double())


@every_pair
def test_dtype_in_is_dtype_out(how, operation, x):
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        y = operation(x.to(dtype), how)
        assert y.dtype == dtype_of(operation, dtype)
        # Half types are computed in float32: only the rounding of the result remains.
        exact = operation(x.to(dtype).double(), how)
        assert_close(y, exact, VALUES)
        g = gradient(lambda x: operation(x, how), x.to(dtype))
        assert g.dtype == dtype
        assert torch.isfinite(g).all()


@pytest.mark.parametrize("how", OF_SCORES)
def test_half_precision_accumulates_in_float32(how):
    """A thousand terms of which none may be lost: in half, 1000 + 0.2 is 1000."""
    if not offers(how, "rank"):
        pytest.skip("offers no ranks")
    x = torch.arange(1000, dtype=torch.float32).div(8).to(torch.float16)
    ranks = so.rank(x, cold(how, 1e-8))
    torch.testing.assert_close(ranks, torch.arange(1.0, 1001.0), rtol=LIMIT, atol=0)


@every_pair
def test_float64_is_float64_all_the_way(how, operation, x):
    """A rounding to float32 anywhere would show at 1e-8."""
    shifted = x + 1e-9 * torch.sin(100 * x)
    change = operation(shifted, how) - operation(x, how)
    linear = jvp(lambda x: operation(x, how), (x,), (shifted - x,))[1]
    torch.testing.assert_close(
        change, linear, rtol=0, atol=LAST_DIGITS + LINEAR * linear.abs().max()
    )


@every_pair
def test_non_contiguous_input(how, operation, x):
    strided = torch.stack([x, x], -1)[..., 0].transpose(0, 2)
    assert not strided.is_contiguous()
    assert_close(operation(strided, how), operation(strided.contiguous(), how), VALUES)
    backwards = np.flip(x.numpy(), 0)
    assert_close(operation(backwards, how), operation(backwards.copy(), how), VALUES)


@every_pair
def test_numpy_gives_the_values_of_torch(how, operation, x):
    y = operation(x.numpy(), how)
    assert isinstance(y, (np.ndarray, np.generic))
    assert_close(y, operation(x, how), VALUES)
    assert operation(x.numpy().astype(np.float32), how).dtype == np.float32


@every_pair
def test_integer_scores_are_a_type_error_that_says_how_to_convert(how, operation):
    said = r"floating dtype; got dtype .*\. Convert first: .*\.to\("
    for dtype in (torch.int64, torch.uint8, torch.bool):
        with pytest.raises(TypeError, match=said):
            operation(torch.ones(4, dtype=dtype), how)


# ---------------------------------------------------------------- ties


@pytest.mark.parametrize(("how", "operation"), SYMMETRIC)
def test_tied_scores_receive_equal_gradients_from_a_symmetric_function(how, operation):
    g = gradient(lambda x: operation(x, how), TIED)
    assert g.abs().max() > 0
    for group in ([0, 2, 5], [1, 4]):
        assert (g[group] - g[group[0]]).abs().max() <= VALUES["float64"] * g.abs().max()


@every_operation
def test_the_gradient_of_a_tied_group_is_that_of_moving_it_together(how, operation):
    weight = torch.cos(torch.arange(operation(TIED, how).numel(), dtype=torch.float64))

    def loss(x):
        return (operation(x, how).reshape(-1) * weight).sum()

    g = gradient(lambda x: operation(x, how).reshape(-1), TIED, weight)
    step = 1e-5
    for group in ([0, 2, 5], [1, 4], [3]):
        move = torch.zeros_like(TIED)
        move[group] = step
        slope = (loss(TIED + move) - loss(TIED - move)) / (2 * step)
        torch.testing.assert_close(g[group].sum(), slope, **DIFFERENCES)


@with_matrix
def test_hard_is_a_permutation_at_ties_and_stable(how):
    for tied in (TIED, torch.zeros(5), torch.full((3,), torch.inf)):
        P = how(tied).hard()
        assert torch.equal(P.order, torch.sort(tied, descending=True, stable=True).indices)
        assert torch.equal(P.matrix().sum(0), torch.ones(len(tied), dtype=tied.dtype))
        assert torch.equal(P.matrix().sum(1), torch.ones(len(tied), dtype=tied.dtype))


@every_operation
def test_derivatives_at_ties_are_finite(how, operation):
    """Where the naive form of |.|^p gives NaN: on the diagonal above all."""
    for tied in (TIED, torch.zeros(4, dtype=torch.float64)):
        x = tied.clone().requires_grad_()
        y = operation(x, how)
        (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
        assert torch.isfinite(first).all()
        assert torch.isfinite(second).all()


# ---------------------------------------------------------------- masks

MASK = torch.tensor([1, 0, 1, 1, 0, 1], dtype=torch.bool)
SCORES = torch.tensor([0.3, 9.0, -0.8, 1.7, -5.0, 0.4], dtype=torch.float64)
ANYTHING = torch.tensor([0.0, torch.nan, 0.0, 0.0, torch.inf, 0.0], dtype=torch.float64)
SPOILED = torch.where(MASK, SCORES, ANYTHING)


@pytest.mark.parametrize(("how", "operation"), ALL_BUT_ARGSORT)
def test_a_mask_gives_what_removing_the_others_would_give(how, operation):
    kept = SCORES[MASK]

    def valid_part(y):
        if y.shape != SCORES.shape:
            return y
        valid = MASK if operation in BY_ITEM.values() else torch.arange(6) < 4
        assert torch.equal(y[~valid].detach(), torch.zeros(2, dtype=torch.float64))
        return y[valid]

    def masked(x):
        return valid_part(operation(x, how, mask=MASK))

    assert_close(masked(SPOILED), operation(kept, how), VALUES)
    g = gradient(masked, SPOILED)
    assert_close(g[MASK], gradient(lambda x: operation(x, how), kept), GRADIENTS)
    assert torch.equal(g[~MASK], torch.zeros(2, dtype=torch.float64))


def test_a_metric_never_sees_a_masked_or_infinite_score():
    """What stands in for them lies outside the domain of such a metric."""

    def ratio(a, b):
        return (a / b - 1) ** 2 + (b / a - 1) ** 2

    how, kept = so.SoftSort(0.5, ratio), torch.tensor([1.0, 3.0, 2.0], dtype=torch.float64)
    expected = gradient(lambda x: so.sort(x, how), kept)
    for extra in (torch.nan, torch.inf):
        x = torch.cat([kept, torch.tensor([extra], dtype=torch.float64)])
        mask = torch.tensor([True, True, True, extra == torch.inf])
        g = gradient(lambda x, mask=mask: so.sort(x, how, mask=mask)[:3], x)
        assert_close(g[:3], expected, GRADIENTS)


@with_matrix
@pytest.mark.parametrize("descending", [False, True])
def test_argsort_under_a_mask_counts_the_masked_items_too(how, descending):
    P = how(SCORES[MASK])
    index = torch.arange(6.0, dtype=torch.float64)[MASK]
    expected = (P if descending else P.flip()) @ index
    soft = so.argsort(SPOILED, how, mask=MASK, descending=descending)
    assert_close(soft[:4], expected, VALUES)
    assert torch.equal(soft[4:], torch.zeros(2, dtype=torch.float64))


@with_matrix
def test_positions_past_the_valid_count_are_zero_rows(how):
    for P in (how(SPOILED, mask=MASK), how(SPOILED, mask=MASK).flip()):
        matrix = P.matrix()
        assert torch.equal(matrix[4:], torch.zeros(2, 6, dtype=torch.float64))
        assert torch.equal(matrix[:, ~MASK], torch.zeros(6, 2, dtype=torch.float64))
        assert_close(matrix[:4].sum(-1), torch.ones(4), VALUES)
        assert torch.equal(P.log_matrix().isneginf(), matrix == 0)
    assert_close(how(SPOILED, mask=MASK).matrix()[:4][:, MASK], how(SCORES[MASK]).matrix(), VALUES)


@with_matrix
def test_values_of_masked_items_and_padding_are_not_looked_at(how):
    P = how(SPOILED, mask=MASK)
    clean = torch.where(MASK, SCORES, 0.0)
    assert_close(P @ SPOILED, P.matrix() @ clean, VALUES)
    u = torch.tensor([1.0, 2.0, 3.0, 4.0, torch.nan, torch.inf], dtype=torch.float64)
    assert_close(P.T @ u, P.matrix().mT @ u.nan_to_num(0, 0, 0), VALUES)
    assert torch.equal(P.hard() @ SPOILED, P.sorted)
    assert torch.isfinite(P.hard().T @ u).all()


@with_matrix
def test_log_prob_and_entropy_skip_masked_items_and_hard_puts_them_last(how):
    P, kept = how(SPOILED, mask=MASK), how(SCORES[MASK])
    assert P.order[4:].tolist() == [1, 4]
    assert torch.equal(P.hard().order, P.order)
    assert_close(P.log_prob(P.order), kept.log_prob(kept.order), VALUES)
    assert_close(P.entropy()[:4], kept.entropy(), VALUES)
    assert torch.equal(P.entropy()[4:], torch.zeros(2, dtype=torch.float64))
    assert_close(P.sorted[:4], kept.sorted, VALUES)
    assert torch.equal(P.hard().matrix()[4:], torch.zeros(2, 6, dtype=torch.float64))
    assert P.hard().log_prob(P.order) == 0


@with_matrix
def test_with_no_valid_item_a_quantile_is_nan_and_a_sort_is_zeros(how):
    none = torch.zeros(6, dtype=torch.bool)
    for x in (SPOILED, SPOILED[None].numpy()):
        mask = none if isinstance(x, torch.Tensor) else none.numpy()
        for zeros in (so.sort, so.argsort, so.rank):
            assert_close(zeros(x, how, mask=mask), np.zeros(x.shape), VALUES)
        assert np.isnan(np.asarray(so.median(x, how, mask=mask))).all()
        assert np.isnan(np.asarray(so.quantile(x, [0.1, 0.9], how, mask=mask))).all()
        assert_close(so.topk(x, 2, how, mask=mask), np.zeros((*x.shape[:-1], 2)), VALUES)
    g = gradient(lambda x: so.sort(x, how, mask=none), SPOILED)
    assert torch.equal(g, torch.zeros(6, dtype=torch.float64))


@every_operation
def test_each_batch_row_has_its_own_mask(how, operation, generator):
    x = torch.randn(4, 5, generator=generator, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 1, 0, 1], [0, 0, 0, 1, 1], [0, 0, 1, 0, 0]]) == 1
    y = operation(x, how, mask=mask)
    for i in range(4):
        alone = operation(x[i], how, mask=mask[i])
        assert_close(y[..., i] if operation is OPERATIONS["quantiles"] else y[i], alone, VALUES)
    across = operation(x.mT, how, dim=0, mask=mask.mT)
    assert_close(across if operation in REDUCING.values() else across.mT, y, VALUES)
    one = operation(x, how, mask=mask[1])
    assert_close(one, operation(x, how, mask=mask[1].expand(4, 5)), VALUES)


# ---------------------------------------------------------------- infinities and NaN

INFINITE = torch.tensor([0.3, torch.inf, -0.8, -torch.inf, 1.7, torch.inf], dtype=torch.float64)
FINITE = torch.isfinite(INFINITE)


@with_matrix
def test_infinities_form_blocks_of_their_own(how):
    P = how(INFINITE)
    matrix = P.matrix()
    expected = torch.zeros(6, 6, dtype=torch.float64)
    expected[:2, [1, 5]] = 0.5
    expected[5, 3] = 1.0
    expected[2:5, FINITE] = how(INFINITE[FINITE]).matrix()
    assert_close(matrix, expected, VALUES)
    assert P.order.tolist() == [1, 5, 4, 0, 2, 3]
    assert torch.equal(P.sorted, torch.sort(INFINITE, descending=True).values)


@with_matrix
def test_zero_times_infinity_counts_as_zero(how):
    y = so.sort(INFINITE, how)
    assert y[0] == -torch.inf
    assert (y[4:] == torch.inf).all()
    assert_close(y[1:4], so.sort(INFINITE[FINITE], how), VALUES)
    # An infinite value that a finite item does reach is infinite; both ends at once are NaN.
    v = torch.tensor([torch.inf, 0.0, -torch.inf], dtype=torch.float64)
    tied = how(torch.zeros(3, dtype=torch.float64))
    assert torch.isnan(tied @ v).all()
    assert (tied @ v.clamp(min=0) == torch.inf).all()


@every_operation
def test_the_gradient_through_an_infinite_score_is_zero_and_finite_items_are_untouched(
    how, operation
):
    y = operation(INFINITE, how)
    finite = torch.isfinite(y)
    weight = torch.where(finite, torch.cos(torch.arange(y.numel())).reshape(y.shape), 0.0)
    g = gradient(lambda x: torch.where(finite, operation(x, how), 0.0), INFINITE, weight)
    assert torch.equal(g[~FINITE], torch.zeros(3, dtype=torch.float64))
    assert torch.isfinite(g).all()


@with_matrix
def test_finite_items_have_the_gradient_they_have_alone(how):
    alone = gradient(lambda x: so.sort(x, how), INFINITE[FINITE])
    y_weight = torch.cos(torch.arange(3, dtype=torch.float64))
    together = gradient(lambda x: so.sort(x, how)[1:4], INFINITE, y_weight)
    assert_close(together[FINITE], alone, GRADIENTS)


@every_operation
def test_nan_spoils_its_own_batch_row_alone(how, operation, generator):
    x = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    clean = operation(x, how)
    clean_gradient = gradient(lambda x: operation(x, how), x)
    x[1, 2] = torch.nan
    y = operation(x, how)
    batch = 1 if operation is OPERATIONS["quantiles"] else 0
    others = torch.tensor([0, 2])
    assert_close(y.index_select(batch, others), clean.index_select(batch, others), VALUES)
    assert torch.isnan(y.select(batch, 1)).all()
    g = gradient(lambda x: operation(x, how), x)
    assert_close(g[others], clean_gradient[others], VALUES)
    assert torch.isnan(g[1]).all()


@with_matrix
def test_nan_spoils_infinite_items_of_its_row_too_but_hard_stays_a_permutation(how):
    x = torch.tensor([torch.inf, torch.nan, 1.0])
    assert torch.isnan(how(x).matrix()).all()
    assert torch.isnan(how(x).entropy()).all()
    assert torch.isnan(how(x).log_prob(how(x).order))
    assert torch.isnan(how(x).straight_through() @ torch.ones(3)).all()
    assert how(x).hard().order.sort().values.tolist() == [0, 1, 2]


@with_matrix
@pytest.mark.parametrize("size", [1e-30, 1e20, 1e38])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_sum_to_one_whatever_the_size_of_the_scores(how, size, dtype):
    x = torch.tensor([size, -size, 0.0, 1.0], dtype=dtype)
    assert_close(how(x).matrix().sum(-1), torch.ones(4), VALUES)

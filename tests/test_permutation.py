"""SoftPermutation: every method against the dense matrix."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles
import softorder as so
import strategies as our
from softorder.extend import RowSoftmax
from tolerances import ITERATED, VALUES, assert_close


@pytest.fixture
def scores(generator):
    s = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    s[0, 1] = s[0, 3]
    return s


@pytest.fixture
def P(scores):
    return so.SoftSort(0.7)(scores)


def test_shape_and_repr(P):
    assert P.shape == (3, 5, 5)
    assert P.T.shape == (3, 5, 5)
    assert P.dtype == torch.float64
    assert repr(P) == "SoftPermutation(shape=(3, 5, 5), dtype=torch.float64, dim=-1)"
    assert repr(P.T) == repr(P) + ".T"


@pytest.mark.parametrize("kernel", ["native", "tiled", "dense"])
@pytest.mark.parametrize("how", [so.SoftSort(0.5), so.NeuralSort(0.5), so.SoftRank(0.5)], ids=str)
def test_the_logarithm_of_nothing_is_a_constant(how, kernel):
    x = torch.tensor([1.0, np.inf, 0.3], dtype=torch.float64, requires_grad=True)
    with so.config(kernel=kernel):
        log_p = how(x).log_matrix()
    (found,) = torch.autograd.grad(torch.where(log_p.isinf(), log_p, 0.0).sum(), x)
    assert found.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("shape", [(5,), (5, 2), (1, 5, 2), (3, 5, 2), (4, 3, 5, 2), (4, 1, 5, 1)])
def test_matmul_follows_matmul(P, shape, generator):
    v = torch.randn(shape, generator=generator, dtype=torch.float64)
    assert_close(P @ v, P.matrix() @ v, VALUES)
    assert_close(P.T @ v, P.matrix().mT @ v, VALUES)
    assert_close(torch.matmul(P, v), P.matrix() @ v, VALUES)
    hard = P.hard()
    assert_close(hard @ v, hard.matrix() @ v, VALUES)
    assert_close(hard.T @ v, hard.matrix().mT @ v, VALUES)


def test_a_batched_vector_is_a_matrix_under_matmul(generator):
    s = torch.randn(5, 5, generator=generator, dtype=torch.float64)
    P = so.SoftSort(0.5)(s)
    v = torch.randn(5, 5, generator=generator, dtype=torch.float64)
    assert_close(P @ v, P.matrix() @ v, VALUES)
    assert (P @ v).shape == (5, 5, 5)
    assert_close(P.apply(v), (P.matrix() @ v[..., None])[..., 0], VALUES)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_apply_takes_any_dimension_and_features_as_they_come(dim, generator):
    s = torch.randn(4, 3, generator=generator, dtype=torch.float64)  # batch 4, items 3
    P = so.SoftSort(0.6)(s)
    x = torch.randn(4, 3, 2, generator=generator, dtype=torch.float64)
    expected = torch.einsum("bij,bjf->bif", P.matrix(), x)
    # Batch first among what remains, features after: three places for the items.
    there = {0: "ibf", 1: "bif", 2: "bfi"}[dim]
    moved = torch.einsum(f"bif->{there}", x)
    assert_close(P.apply(moved, dim), torch.einsum(f"bif->{there}", expected), VALUES)
    assert_close(P.apply(moved, dim - 3), torch.einsum(f"bif->{there}", expected), VALUES)
    back = torch.einsum("bij,bif->bjf", P.matrix(), x)
    assert_close(P.T.apply(moved, dim), torch.einsum(f"bif->{there}", back), VALUES)


def test_apply_shares_values_with_the_batch(P, generator):
    x = torch.randn(5, generator=generator, dtype=torch.float64)
    assert_close(P.apply(x), P.matrix() @ x, VALUES)
    assert_close(P.apply(x[None, :]), P.matrix() @ x, VALUES)
    assert_close(P.apply(x, rows=1), (P.matrix() @ x)[:, 1], VALUES)


def test_apply_of_an_unbatched_permutation_sees_features_only(generator):
    s = torch.randn(4, generator=generator, dtype=torch.float64)
    P = so.SoftSort(0.6)(s)
    x = torch.randn(2, 4, 3, generator=generator, dtype=torch.float64)
    assert_close(P.apply(x, dim=1), torch.einsum("ij,bjf->bif", P.matrix(), x), VALUES)


def test_scores_along_another_dimension(scores, generator):
    x = torch.randn(3, 5, 2, generator=generator, dtype=torch.float64)
    across = so.SoftSort(0.7)(scores.mT, dim=0)
    along = so.SoftSort(0.7)(scores)
    assert_close(across.matrix(), along.matrix(), VALUES)
    assert_close(across.sorted, along.sorted.mT, VALUES)
    assert torch.equal(across.order, along.order.mT)
    assert_close(across.entropy(), along.entropy().mT, VALUES)
    assert_close(across.apply(x, dim=1), along.apply(x, dim=1), VALUES)
    assert_close(across.log_prob(across.order), along.log_prob(along.order), VALUES)


@pytest.mark.parametrize(
    "rows", [0, -1, slice(1, 3), slice(None, None, 2), [0, 4], [-1, 2, 2], [], np.int64(2), (3, 1)]
)
def test_rows_are_rows_of_the_matrix(P, rows, generator):
    x = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    index = int(rows) if isinstance(rows, np.integer) else rows
    index = list(index) if isinstance(rows, tuple) else index
    expected = P.matrix()[:, index]
    assert_close(P.rows(rows), expected, VALUES)
    assert_close(P.hard().rows(rows), P.hard().matrix()[:, index], VALUES)
    assert_close(P.flip().rows(rows), P.matrix().flip(-2)[:, index], VALUES)
    for Q in (P, P.flip(), P.hard()):
        product = torch.einsum("...j,bj->b...", Q.matrix()[0, index], x[:1])
        assert_close(Q.apply(x, rows=rows)[:1], product, VALUES)


def test_rows_may_differ_from_one_batch_row_to_the_next(P):
    index = torch.tensor([[0, 1], [4, -1], [2, 2]])
    expected = torch.stack([P.matrix()[b, index[b]] for b in range(3)])
    assert_close(P.rows(index), expected, VALUES)


def test_rows_outside_are_an_error(P):
    for rows in (5, -6, [0, 7]):
        with pytest.raises(IndexError, match=r"rows must lie in \[-5, 4\]; got .* Positions"):
            P.rows(rows)
    with pytest.raises(TypeError, match="rows must be integers"):
        P.rows(torch.tensor([0.5]))


def test_single_and_backward_rows(P):
    assert_close(P.rows(torch.tensor(1)), P.matrix()[:, 1], VALUES)
    assert_close(P.rows(slice(None, None, -1)), P.matrix().flip(-2), VALUES)


def test_log_matrix_is_accurate_where_the_matrix_underflows():
    s = torch.tensor([0.0, 1e4, 3e4])
    P = so.SoftSort(1.0)(s)
    assert P.matrix()[0, 0] == 0
    assert_close(P.log_matrix()[0], torch.tensor([-3e4, -2e4, 0.0]), VALUES)


@given(our.scores(min_size=1, max_size=4), our.temperatures)
def test_log_prob_is_the_oracles_for_every_permutation(s, tau):
    P = so.SoftSort(tau)(s)
    for permutation in itertools.permutations(range(len(s))):
        expected = oracles.softsort_log_prob(s, np.array(permutation), tau, 1.0)
        assert_close(P.log_prob(np.array(permutation)), expected, VALUES)


def test_log_prob_shares_a_permutation_and_takes_any_integers(P):
    one = torch.tensor([2, 0, 1, 4, 3], dtype=torch.int32)
    expected = P.log_matrix()[:, torch.arange(5), one.long()].sum(-1)
    assert_close(P.log_prob(one), expected, VALUES)
    assert_close(P.log_prob(one.expand(2, 3, 5)), expected.expand(2, 3), VALUES)


@given(our.masked_scores(infinite=True), our.temperatures, st.randoms())
def test_masked_log_prob_and_entropy_are_the_oracles(masked, tau, random):
    s, mask = masked
    permutation = [*np.flatnonzero(mask), *np.flatnonzero(~mask)]
    head = permutation[: mask.sum()]
    random.shuffle(head)
    permutation = np.array([*head, *permutation[mask.sum() :]], dtype=np.int64)
    P = so.SoftSort(tau)(s, mask=mask)
    expected = oracles.softsort_log_prob(s, permutation, tau, 1.0, mask)
    assert_close(P.log_prob(permutation), expected, VALUES)
    assert_close(P.entropy(), oracles.softsort_entropy(s, tau, 1.0, mask), ITERATED)


def test_entropy_goes_from_zero_to_log_n(scores):
    assert so.SoftSort(1e-6)(scores[1:]).entropy().abs().max() < VALUES["float64"]
    assert_close(so.SoftSort(1e9)(scores).entropy(), np.full((3, 5), np.log(5)), VALUES)
    assert so.SoftSort(1.0)(scores).hard().entropy().abs().max() == 0


def test_hard_is_the_exact_stable_sort(P, scores):
    expected = torch.sort(scores, descending=True, stable=True)
    hard = P.hard()
    assert torch.equal(hard.order, expected.indices)
    assert torch.equal(P.order, expected.indices)
    for Q in (P, hard, P.straight_through()):
        assert torch.equal(Q.sorted, expected.values)
    assert torch.equal(hard.apply(scores), expected.values)
    assert torch.equal(hard.matrix().sum(-1), torch.ones(3, 5))
    assert torch.equal(hard.matrix().sum(-2), torch.ones(3, 5))
    assert torch.equal(hard.log_matrix(), hard.matrix().log())
    assert torch.equal(hard.log_prob(expected.indices), torch.zeros(3, dtype=torch.float64))
    assert (hard.log_prob(expected.indices.flip(-1)) == -torch.inf).all()


def test_hard_moves_only_the_nan_it_holds():
    P = so.SoftSort(1.0)(torch.tensor([1.0, 3.0, 2.0])).hard()
    y = P @ torch.tensor([1.0, torch.nan, torch.inf])
    assert torch.equal(torch.isnan(y), torch.tensor([True, False, False]))


def test_flip_is_the_increasing_order(P, scores):
    up = P.flip()
    assert_close(up.matrix(), P.matrix().flip(-2), VALUES)
    assert_close(up.log_matrix(), P.log_matrix().flip(-2), VALUES)
    assert_close(up.sorted, P.sorted.flip(-1), VALUES)
    assert torch.equal(up.order, P.order.flip(-1))
    assert_close(up.entropy(), P.entropy().flip(-1), VALUES)
    assert_close(up.apply(scores), P.apply(scores).flip(-1), VALUES)
    assert_close(up.T.apply(scores), P.T.apply(scores.flip(-1)), VALUES)
    assert_close(up.log_prob(P.order.flip(-1)), P.log_prob(P.order), VALUES)
    assert_close(up.flip().matrix(), P.matrix(), VALUES)
    assert torch.equal(up.hard().apply(scores), torch.sort(scores).values)


def test_the_transpose_of_the_transpose(P):
    assert P.T.T is P
    assert_close(P.T.matrix(), P.matrix().mT, VALUES)


def test_straight_through_has_hard_values_and_soft_gradients(scores, generator):
    v = torch.randn(3, 5, 2, generator=generator, dtype=torch.float64)
    weight = torch.randn(3, 5, 2, generator=generator, dtype=torch.float64)

    def gradients(function):
        s, u = scores.clone().requires_grad_(), v.clone().requires_grad_()
        y = function(so.SoftSort(0.7)(s), u)
        return y.detach(), *torch.autograd.grad((y * weight).sum(), (s, u), allow_unused=True)

    for product in (lambda P, u: P @ u, lambda P, u: P.T @ u):
        y, ds, dv = gradients(lambda P, u, product=product: product(P.straight_through(), u))
        soft = gradients(product)
        hard = gradients(lambda P, u, product=product: product(P.hard(), u))
        assert_close(y, hard[0], VALUES)
        assert_close(ds, soft[1], VALUES)
        assert_close(dv, hard[2], VALUES)
    # The operator and its matrix agree, gradients included.
    dense = gradients(lambda P, u: P.straight_through().matrix() @ u)
    lazy = gradients(lambda P, u: P.straight_through() @ u)
    for a, b in zip(lazy, dense, strict=True):
        assert_close(a, b, VALUES)


def test_straight_through_of_the_scalars(scores):
    permutation = torch.tensor([2, 0, 1, 4, 3])
    for name in ("entropy", "log_prob", "log_matrix"):
        s = scores.clone().requires_grad_()
        arguments = (permutation,) if name == "log_prob" else ()
        P = so.SoftSort(0.7)(s)
        straight = getattr(P.straight_through(), name)(*arguments)
        assert torch.equal(straight, getattr(P.hard(), name)(*arguments))
        (ours,) = torch.autograd.grad(straight.sum(), s, retain_graph=True)
        (soft,) = torch.autograd.grad(getattr(P, name)(*arguments).sum(), s)
        assert_close(ours, soft, VALUES)


def test_straight_through_with_infinities_and_masks():
    s = torch.tensor([1.0, torch.inf, 2.0, torch.nan], requires_grad=True)
    mask = torch.tensor([True, True, True, False])
    y = so.SoftSort(1.0)(s, mask=mask).straight_through() @ s
    assert torch.equal(y.detach(), torch.tensor([torch.inf, 2.0, 1.0, 0.0]))
    (grad,) = torch.autograd.grad(y[1:].sum(), s)
    assert torch.isfinite(grad).all()


def test_integer_values_take_the_dtype_of_the_scores(P):
    y = P @ torch.arange(5)
    assert y.dtype == torch.float64
    assert_close(y, P.matrix() @ torch.arange(5.0, dtype=torch.float64), VALUES)
    assert (P @ torch.tensor([True, False, True, False, True])).dtype == torch.float64
    half = so.SoftSort(1e-3)(torch.arange(3).half()) @ torch.tensor([100000, 2, 1])
    assert half.tolist() == [1.0, 2.0, torch.inf]  # only what does not fit in float16


def test_mixed_precision_is_promoted(generator):
    s = torch.randn(4, generator=generator)
    P = so.SoftSort(0.5)(s)
    v = torch.randn(4, generator=generator, dtype=torch.float64)
    assert (P @ v).dtype == torch.float64
    assert (P @ v.half()).dtype == torch.float32
    assert (so.SoftSort(0.5)(s.half()) @ s.half()).dtype == torch.float16


def test_the_transpose_of_some_rows(P, generator):
    u = torch.randn(3, 2, generator=generator, dtype=torch.float64)
    for Q in (P, P.flip(), P.hard(), P.straight_through()):
        for rows, index in (([0, 3], [0, 3]), (slice(1, 3), [1, 2])):
            expected = torch.einsum("bij,bi->bj", Q.matrix()[:, index], u)
            assert_close(Q.T.apply(u, rows=rows), expected, VALUES)
        one = torch.einsum("bj,b->bj", Q.matrix()[:, 4], u[:, 0])
        assert_close(Q.T.apply(u[:, :1], rows=4), one, VALUES)


def test_the_transpose_of_some_rows_under_a_mask():
    mask = torch.tensor([True, False, True])
    P = so.SoftSort(1.0)(torch.tensor([1.0, 5.0, 2.0]), mask=mask)
    spread = P.T.apply(torch.tensor([1.0, torch.nan]), rows=[0, 2])
    assert_close(spread, P.matrix()[0], VALUES)


def test_an_array_is_not_made_without_a_word(P):
    with pytest.raises(TypeError, match=r"got SoftPermutation\. Call \.matrix\(\)"):
        np.asarray(P)


def test_logits_of_the_wrong_shape_are_an_error():
    class Careless(so.PermutationRelaxation):
        def weights(self, scores):
            return RowSoftmax(lambda scores, rows: scores.items)

    with pytest.raises(ValueError, match=r"must have the shape \(3, 3\); got .*\(3,\).* Rows are"):
        so.sort(np.ones(3), Careless())


def test_logits_that_overflow_are_nan_not_zero():
    class Overflowing(so.PermutationRelaxation):
        def weights(self, scores):
            def logits(scores, rows):
                return scores.items[..., None, :] * np.full((3, 1), -1e300)

            return RowSoftmax(logits)

    with np.errstate(over="ignore", invalid="ignore"):
        assert np.isnan(so.sort(np.full(3, 1e300), Overflowing())).all()


def test_the_wrong_side_of_matmul_is_an_error(P):
    for v in (torch.ones(5), torch.ones(3, 5, 5)):
        with pytest.raises(TypeError, match=r"left of @; got .*Tensor.* write P\.T @ v"):
            v @ P
        with pytest.raises(TypeError, match=r"left of @; got .*Tensor.* write P\.T @ v"):
            v @ P.T
    Q = so.SoftSort(1.0)(np.ones(5))
    with pytest.raises(TypeError, match=r"left of @; got ndarray.* write P\.T @ v"):
        np.ones(5) @ Q


def test_other_torch_functions_refuse_a_permutation(P):
    with pytest.raises(TypeError):
        torch.add(P, torch.ones(5))

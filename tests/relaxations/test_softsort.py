"""SoftSort against the oracle, and what the paper proves and prints about it."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles
import softorder as so
import strategies as our
from catalog import bent
from softorder.torch import KNN
from tolerances import (
    FINITE_DIFFERENCES,
    GRADIENTS,
    PRINTED_ROWS,
    SQUARE_VALUES,
    UNDERFLOW,
    VALUES,
    assert_close,
)


def tensor(x, **kwargs):
    return torch.tensor(np.asarray(x), dtype=torch.float64, **kwargs)


# ---------------------------------------------------------------- against the oracle


@given(our.scores(infinite=True), our.temperatures, our.powers)
def test_the_matrix_is_the_oracles(s, tau, p):
    expected = oracles.softsort_matrix(s, tau, p)
    assert_close(so.SoftSort(tau, p)(tensor(s)).matrix(), expected, VALUES)
    assert_close(so.SoftSort(tau, p)(s).matrix(), expected, VALUES)


@given(our.masked_scores(infinite=True), our.temperatures, our.powers)
def test_the_masked_matrix_is_the_oracles(masked, tau, p):
    s, mask = masked
    expected = oracles.softsort_matrix(s, tau, p, mask)
    P = so.SoftSort(tau, p)(tensor(s), mask=torch.tensor(mask))
    assert_close(P.matrix(), expected, VALUES)
    np.testing.assert_array_equal(P.order.numpy(), oracles.softsort_order(s, mask))
    assert_close(so.SoftSort(tau, p)(s, mask=mask).matrix(), expected, VALUES)


@given(our.scores(), our.temperatures)
def test_a_callable_metric_is_the_oracles(s, tau):
    expected = oracles.softsort_matrix(s, tau, bent)
    assert_close(so.SoftSort(tau, bent)(tensor(s)).matrix(), expected, VALUES)
    assert_close(so.SoftSort(tau, bent)(s).matrix(), expected, VALUES)


@given(st.data(), our.scores(min_size=1), st.sampled_from([0.3, 1.0, 4.0]), our.powers)
def test_every_gradient_is_the_oracles(data, s, tau, p):
    v, g = data.draw(our.vectors(len(s))), data.draw(our.vectors(len(s)))
    leaves = tensor(s, requires_grad=True), tensor(v, requires_grad=True)
    temperature = torch.tensor(tau, dtype=torch.float64, requires_grad=True)
    P = so.SoftSort(temperature, p)(leaves[0])
    (tensor(g) @ (P @ leaves[1])).backward()
    expected = oracles.softsort_sort_gradients(s, v, g, tau, p)
    for name, leaf, value in zip("svt", (*leaves, temperature), expected, strict=True):
        # What cancels leaves rounding behind: compare on the scale of the uncancelled terms.
        scale = 1 + np.abs(v).max() * np.abs(g).max() / tau
        np.testing.assert_allclose(
            leaf.grad.numpy(), value, rtol=0, atol=GRADIENTS["float64"] * scale, err_msg=name
        )


@given(st.data(), our.masked_scores(infinite=True), st.sampled_from([0.3, 2.0]), our.powers)
def test_masked_and_infinite_gradients_are_the_oracles(data, masked, tau, p):
    s, mask = masked
    G = np.stack([data.draw(our.vectors(len(s))) for _ in s])
    leaf = tensor(s, requires_grad=True)
    (so.SoftSort(tau, p)(leaf, mask=torch.tensor(mask)).matrix() * tensor(G)).sum().backward()
    expected, _ = oracles.softsort_matrix_gradients(s, G, tau, p, mask)
    scale = 1 + np.abs(G).max() / tau
    np.testing.assert_allclose(
        leaf.grad.numpy(), expected, rtol=0, atol=GRADIENTS["float64"] * scale
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tau", [1e-4, 1e-2, 1.0, 1e2, 1e4])
@pytest.mark.parametrize("p", [1.0, 2.0])
def test_precision_over_many_temperatures(dtype, tau, p, generator):
    s = torch.randn(40, generator=generator, dtype=torch.float64).to(dtype)
    v = torch.randn(40, generator=generator, dtype=torch.float64).to(dtype)
    leaf = s.clone().requires_grad_()
    y = so.SoftSort(tau, p)(leaf) @ v
    y.sum().backward()
    exact_s, exact_v = s.double().numpy(), v.double().numpy()
    values = SQUARE_VALUES if p == 2.0 else VALUES
    assert_close(y, oracles.softsort_matrix(exact_s, tau, p) @ exact_v, values)
    ds, _, _ = oracles.softsort_sort_gradients(exact_s, exact_v, np.ones(40), tau, p)
    assert leaf.grad is not None
    scale = max(np.abs(ds).max(), 1e-3)
    error = np.abs(leaf.grad.double().numpy() - ds).max() / scale
    assert error < 10 * GRADIENTS[str(dtype).removeprefix("torch.")]


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0, 3.0, 8.0])
@pytest.mark.parametrize("size", [1e-20, 1e5, 1e20, 3e38])
def test_nothing_overflows_into_nan(p, size):
    s = torch.tensor([0.0, size, -size, 1.0, 2.0], requires_grad=True)
    tau = torch.tensor(1.0, requires_grad=True)
    y = so.SoftSort(tau, p)(s) @ torch.arange(5.0)
    y.sum().backward()
    for result in (y, s.grad, tau.grad):
        assert torch.isfinite(result).all()


# ---------------------------------------------------------------- what the paper proves


@given(our.distinct_scores(min_size=1), our.temperatures, our.powers)
def test_theorem_1_rows_are_unimodal_distributions_with_mode_at_the_argsort(s, tau, p):
    P = so.SoftSort(tau, p)(s)
    matrix = P.matrix()
    assert (matrix >= 0).all()
    np.testing.assert_allclose(matrix.sum(-1), 1, rtol=VALUES["float64"])
    np.testing.assert_array_equal(matrix.argmax(-1), P.order)
    np.testing.assert_array_equal(np.sort(P.order), np.arange(len(s)))
    along = P.log_matrix()[:, P.order]  # columns in sorted order: up to the mode, then down
    for i, row in enumerate(along):
        assert (np.diff(row[: i + 1]) >= 0).all()
        assert (np.diff(row[i:]) <= 0).all()


@given(our.distinct_scores(min_size=1), our.powers)
def test_theorem_1_the_limit_is_the_exact_permutation(s, p):
    P = so.SoftSort(1e-3 * 0.25**p, p)(s)
    np.testing.assert_allclose(P.matrix(), np.eye(len(s))[P.order], atol=VALUES["float64"])


@given(our.distinct_scores(min_size=1), our.temperatures, our.powers)
def test_proposition_1_f_of_s_is_f_of_sorted_s_with_columns_permuted(s, tau, p):
    relax = so.SoftSort(tau, p)
    descending = np.sort(s)[::-1].copy()
    exact = np.eye(len(s))[relax(s).order]
    np.testing.assert_allclose(
        relax(s).matrix(),
        relax(descending).matrix() @ exact,
        rtol=VALUES["float64"],
        atol=UNDERFLOW,
    )


@given(our.scores(min_size=1), st.sampled_from([0.1, 1.0, 10.0]))
def test_the_first_row_with_abs_is_softmax(s, tau):
    expected = torch.softmax(tensor(s) / tau, -1)
    assert_close(so.SoftSort(tau)(tensor(s)).rows(0), expected, VALUES)


@given(our.scores(min_size=1), st.sampled_from([0.3, 1.0, 5.0]))
def test_rows_with_abs_are_laplace_densities(s, tau):
    from scipy.stats import laplace

    x = np.sort(s)[::-1]
    density = laplace.pdf(s[None, :], loc=x[:, None], scale=tau)
    assert_close(so.SoftSort(tau)(s).matrix(), density / density.sum(-1, keepdims=True), VALUES)


@given(our.scores(min_size=1), st.sampled_from([0.3, 1.0, 5.0]), st.sampled_from([0.5, 1.0, 3.0]))
def test_rows_with_square_are_gaussian_densities_of_variance_half_tau(s, tau, a):
    """The paper prints the variances tau and a tau; they are half of that."""
    from scipy.stats import norm

    x = np.sort(s)[::-1]
    density = norm.pdf(s[None, :], loc=x[:, None], scale=math.sqrt(a * tau / 2))
    scaled = so.SoftSort(tau, lambda u, v: (u - v) ** 2 / a)(s)
    assert_close(scaled.matrix(), density / density.sum(-1, keepdims=True), VALUES)


def test_the_knn_proposition_is_a_matching_network(generator):
    """With k = 1, tau = 2 and embeddings of norm 1: softmax of the inner products."""
    x = torch.randn(6, 8, generator=generator, dtype=torch.float64)
    neighbors = torch.randn(10, 8, generator=generator, dtype=torch.float64)
    x, neighbors = (u / u.norm(dim=-1, keepdim=True) for u in (x, neighbors))
    expected = torch.softmax(x @ neighbors.T, -1)
    assert_close(so.knn(x, neighbors, 1, 2.0), expected, VALUES)


# ---------------------------------------------------------------- what the paper prints


def test_figure_1():
    for scores in (np.array(oracles.FIGURE_1_SCORES, float), tensor(oracles.FIGURE_1_SCORES)):
        P = so.SoftSort(tau=1.0)(scores)
        np.testing.assert_allclose(
            np.asarray(P.matrix()), oracles.FIGURE_1_MATRIX, atol=PRINTED_ROWS
        )


def test_the_papers_argsort_counts_from_one():
    s = np.array([9.0, 1.0, 5.0, 2.0])
    P = so.SoftSort(1e-3)(s)
    np.testing.assert_array_equal(P.order + 1, [1, 3, 4, 2])
    np.testing.assert_allclose(so.argsort(s, 1e-3, descending=True) + 1, [1, 3, 4, 2])


def test_the_4_by_4_logits_on_the_sorted_region():
    s = tensor([4.0, 2.5, 1.0, -3.0])
    logits = -(s[:, None] - s[None, :]).abs()
    P = so.SoftSort(1.0)(s)
    assert_close(P.log_matrix(), torch.log_softmax(logits, -1), VALUES)
    np.testing.assert_allclose(
        logits.numpy(),
        [[0, -1.5, -3, -7], [-1.5, 0, -1.5, -5.5], [-3, -1.5, 0, -4], [-7, -5.5, -4, 0]],
    )


# ---------------------------------------------------------------- metrics


class Scaled(torch.nn.Module):
    """A metric with a parameter."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(1.5, dtype=torch.float64))

    def forward(self, a, b):
        return self.weight * (a - b).abs()


@pytest.mark.parametrize("power", [0.5, 1.5])
@pytest.mark.parametrize("ties", [False, True])
def test_fractional_powers_have_finite_first_and_second_derivatives(power, ties, generator):
    s = torch.randn(6, generator=generator, dtype=torch.float64)
    if ties:
        s[1] = s[4]
    s.requires_grad_()
    y = (so.SoftSort(0.7, power)(s) @ torch.arange(6.0, dtype=torch.float64)) ** 2
    (first,) = torch.autograd.grad(y.sum(), s, create_graph=True)
    (second,) = torch.autograd.grad((first**2).sum(), s)
    assert torch.isfinite(first).all()
    assert torch.isfinite(second).all()
    assert second.abs().max() > 0


def test_a_metric_learns(generator):
    metric = Scaled()
    s = torch.randn(5, generator=generator, dtype=torch.float64)

    def loss():
        return (so.SoftSort(1.0, metric)(s) @ s.square())[0]

    loss().backward()
    step = 1e-5
    with torch.no_grad():
        metric.weight += step
        above = loss()
        metric.weight -= 2 * step
        below = loss()
    assert metric.weight.grad is not None
    slope = (above - below) / (2 * step)
    assert_close(metric.weight.grad, slope, FINITE_DIFFERENCES)


def test_named_metrics_are_powers(generator):
    s = torch.randn(5, generator=generator, dtype=torch.float64)
    assert_close(so.SoftSort(0.5, "abs")(s).matrix(), so.SoftSort(0.5, 1)(s).matrix(), VALUES)
    assert_close(so.SoftSort(0.5, "square")(s).matrix(), so.SoftSort(0.5, 2)(s).matrix(), VALUES)


@pytest.mark.parametrize(
    "domain",
    [lambda a, b: (a.log() - b.log()).abs(), lambda a, b: (a.logit() - b.logit()).abs()],
)
def test_a_metric_on_a_restricted_domain_has_finite_gradients(domain):
    s = tensor([0.2, 0.9, 0.5, 0.5], requires_grad=True)
    so.sort(s, so.SoftSort(0.3, domain)).square().sum().backward()
    assert s.grad is not None
    assert torch.isfinite(s.grad).all()


def test_relaxations_compare_by_identity_and_print_their_parameters():
    relax = so.SoftSort(0.5, "square")
    assert repr(relax) == "SoftSort(tau=0.5, metric='square')"
    assert relax == relax
    assert relax != so.SoftSort(0.5, "square")
    with pytest.raises(AttributeError):
        relax.tau = 1.0  # pyright: ignore[reportAttributeAccessIssue]


# ---------------------------------------------------------------- "square" and its complex terms


@pytest.mark.parametrize("kernel", ["native", "portable"])
def test_products_of_non_negative_values_with_square_are_not_negative(kernel, generator):
    """The complex terms cancel to about 1e-16, of either sign."""
    how = so.SoftSort(1.0, "square")
    x = torch.randn(10, 1000, generator=generator)
    labels = torch.randint(0, 10, (1000,), generator=generator)
    one_hot = torch.nn.functional.one_hot(labels, 10).to(x.dtype)
    with so.config(kernel=kernel):
        assert (so.topk_mask(torch.tensor([0.0, 3.0, 6.0, 9.0, 12.0]), 1, how) >= 0).all()
        P = so.SoftSort(0.5, "square")(x)
        shares = P @ one_hot
        assert (shares >= 0).all()
        assert (shares <= 1).all()
        assert_close(shares.sum(-1), torch.ones(10, 1000), VALUES)
        assert (P.T @ one_hot >= 0).all()
        assert (P.T @ -one_hot <= 0).all()


def test_the_logarithm_of_soft_neighbours_with_square_is_no_nan(generator):
    classify = KNN(3, so.SoftSort(0.5, "square"), num_classes=10)
    query = 5 * torch.randn(100, 8, generator=generator)
    neighbors = 5 * torch.randn(1000, 8, generator=generator)
    labels = torch.randint(0, 10, (1000,), generator=generator)
    assert not classify(query, neighbors, labels).log().isnan().any()


@pytest.mark.parametrize("kernel", ["native", "portable"])
def test_the_bounds_of_square_leave_its_gradient_alone(kernel):
    """Where a weight underflows to less than zero it is cut off; its slope is the exact one."""
    x = torch.tensor([0.0, 3.0, 6.0, 9.0, 12.0], dtype=torch.float64, requires_grad=True)
    found = []
    for each in (kernel, "dense"):
        with so.config(kernel=each):
            y = so.topk_mask(x, 1, so.SoftSort(1.0, "square"))
        found.append(torch.autograd.grad(y, x, torch.cos(torch.arange(5.0)).double())[0])
    assert_close(*found, GRADIENTS)

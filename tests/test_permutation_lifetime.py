"""A SoftPermutation keeps what it was made of: snapshots of its inputs, graphs, copies."""

import copy
import pickle

import numpy as np
import pytest
import torch

import softorder as so
from frameworks import NAMES, is_installed
from tolerances import VALUES

RELAXATIONS = {
    "abs": so.SoftSort(0.5),
    "square": so.SoftSort(0.5, "square"),
    "cube": so.SoftSort(0.5, 3.0),
    "neuralsort": so.NeuralSort(0.5),
    "softrank": so.SoftRank(0.5),
    "transport": so.OptimalTransportSort(0.5),
    "targets": so.OptimalTransportSort(0.5, targets=2),
}
KERNELS = {"abs": ["native", "portable", "tiled", "dense"], "neuralsort": ["native", "tiled"]}
KERNELS["square"] = KERNELS["abs"]
CASES = [(name, kernel) for name in RELAXATIONS for kernel in KERNELS.get(name, [None])]
X, V = [3.0, 1.0, 1.0, 2.0, -1.0], torch.arange(5.0, dtype=torch.float64)
PRODUCTS = {
    "apply": lambda P, v: P @ v,
    "transposed": lambda P, v: P.T @ v,
    "matrix": lambda P, v: P.matrix(),
    "log_matrix": lambda P, v: P.log_matrix(),
    "rows": lambda P, v: P.rows([1, 2]),
    "entropy": lambda P, v: P.entropy(),
    "log_prob": lambda P, v: P.log_prob(P.order),
    "sort_scores": lambda P, v: P.sort_scores(),
    "sorted": lambda P, v: P.sorted,
    "marginal_error": lambda P, v: P.marginal_error(),
    "flip": lambda P, v: P.flip().sort_scores(),
    "straight_through": lambda P, v: P.straight_through() @ v,
}


def scores():
    return torch.tensor(X, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize(("name", "kernel"), CASES)
def test_every_product_is_differentiated_by_itself(name, kernel):
    """A backward pass through one product leaves the others alone, whichever comes first."""
    with so.config(kernel=kernel):
        alone = {}
        for product, function in PRODUCTS.items():
            x = scores()
            tau = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
            leaves = (x, tau)
            y = function(_with_tau(name, tau)(x), V)
            alone[product] = _gradients(y, leaves)
        x, tau = scores(), torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
        P = _with_tau(name, tau)(x)
        together = {product: function(P, V) for product, function in PRODUCTS.items()}
    for product, y in together.items():
        for found, expected in zip(_gradients(y, (x, tau)), alone[product], strict=True):
            torch.testing.assert_close(found, expected, msg=product)


def _with_tau(name, tau):
    how = RELAXATIONS[name]
    if isinstance(how, so.OptimalTransportSort):
        return so.OptimalTransportSort(tau, targets=how.targets)
    return type(how)(tau, how.metric) if isinstance(how, so.SoftSort) else type(how)(tau)


def _gradients(y, leaves):
    y = torch.where(y.isinf(), 0.0, y)
    weights = torch.linspace(1.0, 2.0, y.numel(), dtype=y.dtype).reshape(y.shape)
    return torch.autograd.grad((y * weights).sum(), leaves, materialize_grads=True)


def test_products_of_a_matching_are_differentiated_by_themselves():
    matrix = torch.eye(3, requires_grad=True)
    P = so.Sinkhorn(0.5)(matrix)
    for y in (P.matrix(), P @ torch.arange(3.0), P.entropy(), P.T @ torch.arange(3.0)):
        assert torch.autograd.grad(y[0].sum(), matrix)[0].abs().max() > 0


@pytest.mark.parametrize(("name", "kernel"), CASES)
def test_scores_that_change_after_p_was_made(name, kernel):
    """In place, through `.data`, through shared memory: P is that of the scores it was given."""
    how = RELAXATIONS[name]
    shared = np.array(X)
    given = [torch.tensor(X, dtype=torch.float64), scores(), torch.from_numpy(shared)]
    changes = [
        lambda: given[0].mul_(-1),
        lambda: given[1].data.mul_(-1),
        lambda: np.multiply(shared, -1, out=shared),
    ]
    with so.config(kernel=kernel):
        fresh = {p: f(how(scores().detach()), V) for p, f in PRODUCTS.items()}
        for x, change in zip(given, changes, strict=True):
            P = how(x)
            first = P @ V
            change()
            assert torch.equal(first, fresh["apply"])
            for product, function in PRODUCTS.items():
                found = function(P, V)
                if product == "log_prob":
                    found = P.log_prob(torch.tensor(X).argsort(descending=True, stable=True))
                torch.testing.assert_close(found.detach(), fresh[product], msg=product)


@pytest.mark.parametrize("name", RELAXATIONS)
def test_numpy_scores_that_change_after_p_was_made(name):
    x = np.array(X)
    P, fresh = RELAXATIONS[name](x), RELAXATIONS[name](np.array(X))
    x *= -1
    for product, function in PRODUCTS.items():
        found, expected = (function(Q, V.numpy()) for Q in (P, fresh))
        np.testing.assert_array_equal(found, expected, err_msg=product)


@pytest.mark.parametrize("make", [np.array, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("name", RELAXATIONS)
def test_a_mask_that_changes_after_p_was_made(name, make):
    valid = [True, False, True, True, True]
    mask, x, v = make(valid), make(X), make(V.tolist())
    P, fresh = RELAXATIONS[name](x, mask=mask), RELAXATIONS[name](x, mask=make(valid))
    mask[:] = make([True, True, True, False, False])
    for product, function in PRODUCTS.items():
        found, expected = (function(Q, v) for Q in (P, fresh))
        np.testing.assert_array_equal(np.asarray(found), np.asarray(expected), err_msg=product)


def test_a_temperature_that_changes_after_p_was_made():
    tau, x = torch.tensor(0.5, requires_grad=True), scores()
    P = so.SoftSort(tau)(x)
    fresh = P @ V
    with torch.no_grad():
        tau.add_(1.0)
    assert torch.equal(P @ V, fresh)
    (P @ V)[0].backward()
    assert tau.grad is not None


def test_a_matrix_that_changes_after_it_was_balanced():
    matrix = torch.eye(3)
    P = so.Sinkhorn(0.5)(matrix)
    first = P.matrix()
    matrix.zero_()
    assert torch.equal(P.matrix(), first)


def test_a_variable_that_changes_after_p_was_made():
    tf = pytest.importorskip("tensorflow")
    x = tf.constant(X)
    tau, matrix, own = tf.Variable(0.5), tf.Variable(np.eye(3)), tf.Variable(X)
    made = [so.SoftSort(tau)(x), so.NeuralSort(tau)(x), so.SoftRank(tau)(x), so.SoftSort()(own)]
    made += [so.OptimalTransportSort(tau)(x), so.Sinkhorn(tau)(tf.eye(3)), so.Sinkhorn()(matrix)]
    first = [P.matrix() for P in made]
    tau.assign(5.0)
    matrix.assign(np.zeros((3, 3)))
    own.assign([0.0] * 5)
    for P, expected in zip(made, first, strict=True):
        np.testing.assert_array_equal(P.matrix(), expected)


def test_what_p_returns_is_not_its_own_memory():
    """Whoever writes to a result must not change P."""
    made = [how(np.array(X)) for how in RELAXATIONS.values()] + [so.Sinkhorn()(np.eye(5))]
    with torch.no_grad():
        made += [how(scores()) for how in RELAXATIONS.values()] + [so.Sinkhorn()(torch.eye(5))]
        for P in made:
            v = P.matrix()[0] * 0 + 1
            products = [P.matrix, P.log_matrix, P.T.matrix, P.entropy, lambda P=P: P.rows([0, 1])]
            for product in [*products, lambda P=P: P.order]:
                product()[...] = 0
            np.testing.assert_allclose(np.asarray(P @ v), 1.0, rtol=VALUES["float64"])
            assert sorted(np.asarray(P.order).tolist()) == list(range(5))


def test_a_learnable_temperature_is_differentiated_by_each_product():
    from softorder.torch import SoftSort

    module = SoftSort(0.5, learnable_tau=True)
    P = module(scores())
    for y in (P @ V, P.T @ V, P.entropy()):
        assert torch.autograd.grad(y[0], module.log_tau)[0].abs() > 0


@pytest.mark.parametrize("name", RELAXATIONS)
def test_a_view_that_was_made_without_gradients_is_differentiated_by_itself(name):
    x = scores()
    P = RELAXATIONS[name](x)
    P.entropy()
    with torch.no_grad():
        made = [P.flip(), P.straight_through()]
    for Q in (P, *made):
        for y in (Q.entropy(), Q @ V, Q.matrix()):
            assert torch.autograd.grad(y.sum(), x)[0].isfinite().all()


@pytest.mark.parametrize("name", RELAXATIONS)
def test_inference_mode_leaves_nothing_behind(name):
    x = scores()
    P = RELAXATIONS[name](x)
    with torch.inference_mode():
        for function in PRODUCTS.values():
            function(P, V)
    for function in PRODUCTS.values():
        (found,) = _gradients(function(P, V), x)
        assert found.isfinite().all()


@pytest.mark.parametrize("name", RELAXATIONS)
@pytest.mark.parametrize(("shape", "masked"), [((5,), False), ((5,), True), ((2, 1, 5), True)])
def test_a_permutation_that_a_compiled_function_used(name, masked, shape):
    """What was computed there is unknown outside."""
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    x = jnp.broadcast_to(jnp.array(X), shape)
    mask = jnp.ones(shape, dtype=bool).at[..., 1].set(False) if masked else None
    P, v = RELAXATIONS[name](x, mask=mask), jnp.arange(5.0)[:, None]
    expected = RELAXATIONS[name](x, mask=mask) @ v
    np.testing.assert_allclose(
        jax.jit(lambda v: P @ v)(v), expected, rtol=VALUES["float64"], atol=VALUES["float64"]
    )
    np.testing.assert_allclose(P @ v, expected, rtol=VALUES["float64"], atol=VALUES["float64"])
    jax.grad(lambda v: (P.T @ v).sum())(v)


def test_an_operation_does_not_copy_its_scores(monkeypatch):
    """Its permutation is gone before anyone could change them."""
    from inside import find_wiring

    x, copies = torch.tensor(X), []
    monkeypatch.setitem(vars(find_wiring(x)), "copy", lambda x: copies.append(x) or x)
    so.sort(x, 0.5)
    so.rank(x, 0.5)
    so.topk_mask(x, 2, so.NeuralSort(0.5))
    assert not copies
    so.SoftSort(0.5)(x)
    assert len(copies) == 1


@pytest.mark.parametrize("framework", NAMES)
@pytest.mark.parametrize("name", RELAXATIONS)
def test_pickle_and_deepcopy(framework, name):
    if not is_installed(framework):
        pytest.skip(f"{framework} is not installed")
    x, mask = _arrays(framework)
    P = RELAXATIONS[name](x, mask=mask)
    for Q in (P, P.flip(), P.hard(), P.straight_through().flip()):
        for again in (pickle.loads(pickle.dumps(Q)), copy.deepcopy(Q), copy.copy(Q)):
            assert repr(again) == repr(Q)
            np.testing.assert_array_equal(np.asarray(again.matrix()), np.asarray(Q.matrix()))
            np.testing.assert_array_equal(np.asarray(again.T.matrix()), np.asarray(Q.T.matrix()))
    again = pickle.loads(pickle.dumps(P.T))
    np.testing.assert_array_equal(np.asarray(again.matrix()), np.asarray(P.T.matrix()))


def _arrays(framework):
    x, mask = np.array(X, dtype=np.float32), np.array([True, True, False, True, True])
    if framework == "torch":
        return torch.tensor(x), torch.tensor(mask)
    if framework == "jax":
        import jax.numpy as jnp

        return jnp.asarray(x), jnp.asarray(mask)
    if framework == "tensorflow":
        import tensorflow as tf

        return tf.constant(x), tf.constant(mask)
    return x, mask


def test_a_deep_copy_keeps_the_gradient():
    x = scores()
    y = copy.deepcopy(so.SoftSort(0.5)(x * 2)) @ V
    assert torch.autograd.grad(y[0], x)[0].abs().max() > 0


@pytest.mark.parametrize("kernel", ["tiled", "dense"])
def test_a_permutation_keeps_the_kernel_it_was_made_with(kernel):
    x = scores()
    with so.config(kernel=kernel):
        P = so.SoftSort(0.5)(x)
    kind = type(P._operator)
    for _ in range(3):
        assert (P @ V).requires_grad
        assert type(P._operator) is kind

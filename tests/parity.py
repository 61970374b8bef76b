"""What every framework must do alike: operations, relaxations, and the table of the docs."""

import contextlib
import types

import numpy as np

import softorder as so
from tolerances import FINITE_DIFFERENCES, GRADIENTS, SQUARE_VALUES, assert_close

N = 5
V = np.cos(np.arange(2.0 * N)).reshape(N, 2)
ITEMS = np.array([3, 0, 4, 1, 2])

# Each maps scores (n,) and a relaxation to an array; `a` holds further arrays of the framework, for
# n = N.
OPERATIONS = {
    "sort": lambda x, how, a, **kw: so.sort(x, how, **kw),
    "sort, descending": lambda x, how, a, **kw: so.sort(x, how, descending=True, **kw),
    "sort, by=": lambda x, how, a, **kw: so.sort(a.v, how, by=x, dim=0, **kw),
    "argsort": lambda x, how, a, **kw: so.argsort(x, how, **kw),
    "rank": lambda x, how, a, **kw: so.rank(x, how, **kw),
    "topk": lambda x, how, a, **kw: so.topk(x, 1, how, **kw),
    "topk_mask": lambda x, how, a, **kw: so.topk_mask(x, 1, how, largest=False, **kw),
    "quantile": lambda x, how, a, **kw: so.quantile(x, [0.0, 0.3], how, **kw),
    "median": lambda x, how, a, **kw: so.median(x, how, **kw),
    "knn": lambda x, how, a: so.knn(x[..., None], a.v[:, :1], 2, how),
    "P.matrix()": lambda x, how, a, **kw: how(x, **kw).matrix(),
    "P.log_matrix()": lambda x, how, a: so.as_relaxation(how)(x).log_matrix(),
    "P.rows(i)": lambda x, how, a, **kw: how(x, **kw).rows([0, -1]),
    "P @ v": lambda x, how, a: how(x) @ a.v,
    "P.T @ u": lambda x, how, a: how(x).T @ a.v,
    "P.flip() @ v": lambda x, how, a: how(x).flip() @ a.v,
    "P.hard() @ v": lambda x, how, a: how(x).hard() @ a.v + x[..., None],
    "P.straight_through() @ v": lambda x, how, a: how(x).straight_through() @ a.v,
    "P.log_prob(i)": lambda x, how, a: how(x).log_prob(a.items),
    "P.entropy()": lambda x, how, a, **kw: how(x, **kw).entropy(),
    "P.marginal_error()": lambda x, how, a: how(x).marginal_error(),
    "PlackettLuce.log_prob": lambda x, how, a: so.PlackettLuce(x, how).log_prob(a.items),
}
# These take scores of any length, and a mask.
FOR_ANY_SCORES = [
    "sort",
    "sort, descending",
    "argsort",
    "rank",
    "topk",
    "topk_mask",
    "quantile",
    "median",
    "P.matrix()",
    "P.entropy()",
]
RELAXATIONS = {
    "SoftSort": so.SoftSort(0.7),
    'SoftSort, "square"': so.SoftSort(0.7, "square"),
    "SoftSort, a power": so.SoftSort(0.7, 1.5),
    "SoftSort, a callable": so.SoftSort(0.7, lambda a, b: abs(a - b) + abs(a**3 - b**3)),
    "NeuralSort": so.NeuralSort(1.3),
    "OptimalTransportSort": so.OptimalTransportSort(0.1, iterations=5),
    "SoftRank": so.SoftRank(0.8),
    "ApproximateRank": so.ApproximateRank(0.6),
    "FastSoftSort": so.FastSoftSort(0.9),
    'FastSoftRank, "kl"': so.FastSoftRank(0.9, "kl"),
    "Sinkhorn": so.Sinkhorn(0.5, iterations=5),
}
ASPECTS = ("value", "gradient", "second derivative", "compiled")

X = np.array([0.3, -1.1, 0.9, 0.2, -0.4])


def call(operation, how, framework, **arguments):
    """Return an operation as a function of arrays of a framework."""
    # Made here: not by the function, which is compiled.
    a = types.SimpleNamespace(v=framework.array(V), items=framework.array(ITEMS))
    return lambda x: OPERATIONS[operation](x, how, a, **arguments)


def of_relaxation(how, framework):
    """Return what is examined of a relaxation, as a function of scores: it has one of these."""
    if isinstance(how, so.Sinkhorn):
        column = framework.array(V[:, :1])
        return lambda x: how(column * x[None, :]).matrix()
    return call("sort" if not hasattr(how, "ranks") else "rank", how, framework)


def weights(y):
    """Return fixed uneven weights in the shape of y."""
    return np.cos(np.arange(y.size, dtype=np.float64)).reshape(y.shape)


def second_derivative(function, numpy, x, g, direction, step=1e-5):
    """Return central differences of the gradients that NumPy has."""
    ends = [numpy.pull(function, [x + sign * step * direction], g)[1][0] for sign in (1, -1)]
    return (ends[0] - ends[1]) / (2 * step)


def examine(make, framework, numpy):
    """Return which aspects of a function a framework has; those that it has must be right.

    Args:
        make: Gives the function for a framework.
        framework: The one that is examined.
        numpy: The one that it is compared with.
    """
    function, reference = make(framework), make(numpy)
    y = reference(X)
    g, direction = weights(y), np.sin(1 + np.arange(X.size))
    found = dict.fromkeys(ASPECTS, False)
    with offered(found, "value", "gradient"):
        value, (gradient,) = framework.pull(function, [X], g)
        assert_close(value, y, SQUARE_VALUES)
        (expected,) = numpy.pull(reference, [X], g)[1]
        assert_close(gradient, expected, GRADIENTS)
    if framework.second is not None:
        with offered(found, "second derivative"):
            got = framework.second(function, X, g, direction)
            expected = second_derivative(reference, numpy, X, g, direction)
            np.testing.assert_allclose(got, expected, rtol=0, atol=FINITE_DIFFERENCES)
    if framework.compiled is not None:
        with offered(found, "compiled"):
            assert_close(framework.value(framework.compiled(function), X), y, SQUARE_VALUES)
    return found


@contextlib.contextmanager
def offered(found, *aspects):
    """Note aspects as found, unless an error says that they are not offered."""
    try:
        yield
    except TypeError as error:
        # Of three parts: what was expected, what came, what to do.
        if "; got " not in str(error):
            raise
    else:
        found.update(dict.fromkeys(aspects, True))


def examine_all(framework, numpy):
    """Return what a framework has: rows of the table, each a dict of aspects."""
    rows = {}
    for name in OPERATIONS:
        how = RELAXATIONS["SoftSort"]
        rows[name] = examine(lambda f, n=name, h=how: call(n, h, f), framework, numpy)
    for name, how in RELAXATIONS.items():
        rows[f"`{name}`"] = examine(lambda f, h=how: of_relaxation(h, f), framework, numpy)
    return rows

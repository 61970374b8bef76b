"""The oracle of ties, by what is known of it without a library."""

import itertools
import math

import numpy as np
import torch

from tie_oracle import _PRODUCTS, INF, abs_closed_form, all_orders, gradients
from tolerances import GRADIENTS, ITERATED, LAST_DIGITS, PRINTED, TIE_DIFFERENCES, TIES, VALUES


def _close(name, found, expected, tolerance):
    """Raise AssertionError where two arrays differ."""
    found, expected = np.asarray(found, dtype=float), np.asarray(expected, dtype=float)
    if not np.allclose(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True):
        raise AssertionError(f"{name}:\n  found    {found}\n  expected {expected}")


def _example(product, n, rng):
    """Return an extra argument and a cotangent for a product."""
    several = {
        "apply": rng.normal(size=n),
        "transposed": rng.normal(size=n),
        "topk_mask": min(2, n),
        "topk": min(2, n),
        "knn": min(2, n),
        "quantile": [0.3, 0.5, 1.0],
        "log_prob": rng.permutation(n),
    }
    shapes = {"topk": (min(2, n),), "quantile": (3,), "log_prob": ()}
    shapes |= {"matrix": (n, n), "log_matrix": (n, n)}
    return several.get(product), rng.normal(size=shapes.get(product, (n,)))


def _settings():
    """Yield every relaxation with its options: (name, tau, options)."""

    def crooked(a, b):
        return (a - b).abs() ** 1.5 + 0.3 * (torch.exp(a / 2) - torch.exp(b / 2)) ** 2

    for p in (1.0, 2.0, 1.5, 0.5):
        yield "softsort", 0.7, {"p": p}
    yield "softsort", 0.7, {"metric": crooked}
    for name in _PRODUCTS:
        if name != "softsort":
            yield name, {"transport": 0.2}.get(name, 0.6), {}


def _central_differences(call, arrays, cotangent, step=1e-6):
    """Return the symmetric difference quotient of sum(cotangent * call(*arrays)) for each array."""
    out = []
    for position, array in enumerate(arrays):
        gradient = np.zeros(np.shape(array))
        for place in np.ndindex(*np.shape(array)):
            values = []
            for sign in (1, -1):
                moved = [np.array(a, dtype=float) for a in arrays]
                moved[position][place] += sign * step
                values.append(float(np.sum(cotangent * np.asarray(call(*moved)))))
            gradient[place] = (values[0] - values[1]) / (2 * step)
        out.append(gradient)
    return out


def _compare_with_differences(
    name, product, s, tau, options, rng, tolerance=TIE_DIFFERENCES["smooth"], step=1e-6
):
    """Compare the three gradients with central differences."""
    n = len(s[1]) if product == "knn" else len(s)
    extra, cotangent = _example(product, n, rng)
    weighted = product in ("apply", "transposed")

    def call(*arrays):
        scores = arrays[:2] if product == "knn" else arrays[0]
        last = arrays[-1] if weighted else extra
        at = arrays[2 if product == "knn" else 1]
        return gradients(name, product, scores, at, extra=last, cotangent=cotangent, **options)[0]

    _, ds, dtau, dextra = gradients(
        name, product, s, tau, extra=extra, cotangent=cotangent, **options
    )
    scores = list(s) if product == "knn" else [s]
    found = (list(ds) if product == "knn" else [ds]) + [dtau] + ([dextra] if weighted else [])
    expected = _central_differences(
        call, scores + [tau] + ([extra] if weighted else []), cotangent, step
    )
    for what, a, b in zip(("scores", "second", "third"), found, expected, strict=False):
        _close(f"{name} {options} {product}: {what} against differences", a, b, tolerance)


def test_known_numbers():
    """Compare with numbers that are known from elsewhere."""
    s, v = [1.0, 1.0, 0.0, -0.6], [3.0, -1.0, 0.5, 2.0]
    _, ds, _, _ = gradients("softsort", "apply", s, 0.7, p=2, extra=v, cotangent=[0, 0, 1.0, 0])
    _close("row 2 of softsort, p = 2", ds[:2], [-0.644, 0.675], PRINTED[3])
    for name, expected in (
        ("approximate_rank", [-1.5, -0.75, 2.25]),
        ("softrank", [-1.693, -0.846, 2.539]),
        ("fast_soft_rank_l2", [-2.0, -1.0, 3.0]),
    ):
        _, ds, _, _ = gradients(name, "rank", np.zeros(3), 1.0, cotangent=[1.0, 2.0, 6.0])
        _close(f"ranks of zeros by {name}", ds, expected, PRINTED[3])
    _close("weights of the query", *_matching_network(), LAST_DIGITS)


def _matching_network():
    """Return kNN weights with k = 1, and the softmax of -|query - neighbor|^2 / tau."""
    query, neighbors = np.array([0.3, 0.1]), np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    found, _, _, _ = gradients(
        "softsort", "knn", (query, neighbors), 2.0, extra=1, cotangent=np.ones(3)
    )
    logits = -((query - neighbors) ** 2).sum(1) / 2.0
    return found, np.exp(logits) / np.exp(logits).sum()


def test_the_documented_values():
    """Compare with the examples in the library's public documentation."""
    neural = [[0, 0.73, 0.27], [0.09, 0.24, 0.67], [0.88, 0.01, 0.12]]
    soft = [[0.04, 0.71, 0.26], [0.09, 0.24, 0.67], [0.84, 0.04, 0.11]]
    for name, product, s, tau, expected, digits in (
        ("softsort", "sort", [2.0, 5.0, 4.0], 0.1, [2.0, 4.00004539, 4.9999546], 8),
        ("softsort", "matrix", [2.0, 5.0, 4.0], 1.0, soft, 2),
        ("neuralsort", "matrix", [2.0, 5.0, 4.0], 1.0, neural, 2),
        ("softrank", "rank", [2.0, 5.0, 4.0], 1.0, [1.096, 2.743, 2.161], 3),
        ("transport", "sort", [2.0, 5.0, 4.0], 0.1, [2.03, 4.08, 4.88], 2),
        ("approximate_rank", "rank", [2.0, 5.0, 4.0], 0.5, [1.02, 2.878, 2.101], 3),
        ("fast_soft_rank_l2", "rank", [2.0, 5.0, 4.5], 1.0, [1.0, 2.75, 2.25], 3),
        ("fast_soft_sort_l2", "sort", [2.0, 5.00001, 4.0], 1.0, [2.667, 3.667, 4.667], 3),
    ):
        value, _, _, _ = gradients(name, product, s, tau, cotangent=np.zeros(np.shape(expected)))
        _close(f"documented value of {name}", value, expected, PRINTED[digits])


def test_the_closed_formula_is_brute_force():
    """Compare the closed formula for p = 1 with brute force, for random weights C."""
    rng = np.random.default_rng(0)
    for m in (2, 3, 4, 5):
        weights = rng.normal(size=(m, m))
        total = np.zeros(m)
        orders = list(itertools.permutations(range(m)))
        for order in orders:
            for i, j in itertools.product(range(m), repeat=2):
                slope = weights[i, j] * np.sign(order.index(j) - i)
                total[order[i]] += slope
                total[j] -= slope
        _close(
            f"closed form, m = {m}",
            abs_closed_form(weights),
            total / len(orders),
            VALUES["float64"],
        )


def test_gradients_are_the_rule_written_out():
    """Compare `gradients` with the whole rule of the design for p = 1, written with C."""
    rng = np.random.default_rng(1)
    s, tau = np.array([0.5, 1.0, 0.5, -0.2, 1.0, 0.5]), 0.7
    n, cotangent = len(s), rng.normal(size=(6, 6))
    value, ds, _, _ = gradients("softsort", "matrix", s, tau, cotangent=cotangent)
    value = value.numpy()
    x = np.sort(s)[::-1]
    weights = -value * (cotangent - (cotangent * value).sum(1, keepdims=True)) / tau
    slopes = weights * np.sign(x[:, None] - s[None])
    expected = -slopes.sum(0)
    for j in range(n):
        expected[j] += slopes.sum(1)[x == s[j]].mean()
    for level in (0.5, 1.0):
        tied = s == level
        expected[tied] += abs_closed_form(weights[np.ix_(x == level, tied)])
    _close("closed form inside softsort", ds, expected, VALUES["float64"])


def test_gradients_without_ties_are_differences():
    """Compare every relaxation and product with central differences at distinct scores."""
    rng = np.random.default_rng(2)
    s = np.array([0.3, -0.61, 1.17, 0.02, -1.33])
    points = (rng.normal(size=2), rng.normal(size=(4, 2)))
    for name, tau, options in _settings():
        for product in _PRODUCTS[name]:
            at = points if product == "knn" else s
            _compare_with_differences(name, product, at, tau, options, rng)


def test_gradients_at_tied_pairs_are_central_differences():
    """Compare with central differences at ties, wherever they have the rule's answer.

    That is for relaxations that are smooth there, and for groups of two: an item moved up is the
    first of its pair, moved down the second, so that the symmetric quotient is the mean over
    both orders. (p < 1 and metrics that are not smooth at a == b follow a convention.)
    """
    rng = np.random.default_rng(3)
    pair = np.array([0.4, -0.6, 1.1, 0.4, -1.3, 1.1])
    triple = np.array([0.4, -0.6, 0.4, 0.4, -1.3, -0.6])
    smooth = ("softrank", "approximate_rank", "transport")
    smooth += ("fast_soft_rank_l2", "fast_soft_rank_kl", "neuralsort")
    for name, tau, options in _settings():
        if options.get("p") == 0.5:
            continue
        # The quotient has an error of the order of step^(p - 1), and of the step at a kink.
        rough = "metric" in options or options.get("p") == 1.5
        loose = TIE_DIFFERENCES["root" if rough else "kink"]
        step = 1e-9 if rough else 1e-6
        for product in _PRODUCTS[name]:
            if product == "knn":
                continue
            _compare_with_differences(name, product, pair, tau, options, rng, loose, step)
            if name in smooth and product != "sorted":
                _compare_with_differences(name, product, triple, tau, options, rng, loose, step)


def test_rows_outside_a_group_are_smooth():
    """For p > 1 a row outside a tied group of three is smooth: central differences agree."""
    rng = np.random.default_rng(4)
    s = np.array([1.0, 0.0, 1.0, -0.6, 1.0])
    extra, cotangent = rng.normal(size=5), np.array([0, 0, 0, 1.3, -0.4])
    for p in (2.0, 3.0):

        def call(a, tau, v, p=p):
            return gradients("softsort", "apply", a, tau, p=p, extra=v, cotangent=cotangent)[0]

        found = gradients("softsort", "apply", s, 0.7, p=p, extra=extra, cotangent=cotangent)
        for a, b in zip(
            found[1:], _central_differences(call, [s, 0.7, extra], cotangent), strict=False
        ):
            _close(f"rows outside a group, p = {p}", a, b, TIE_DIFFERENCES["smooth"])


def _naive_softsort(s, tau, p, v):
    """The paper's three lines: P v by torch.sort, with no care for ties."""
    x = s.sort(descending=True).values
    return torch.softmax(-((x[:, None] - s[None, :]).abs() ** p) / tau, 1) @ v


def test_ties_broken_by_hand():
    """Move tied scores apart by a hair, in every order, and average autograd's gradients."""
    rng = np.random.default_rng(5)
    s = np.array([0.4, -0.6, 0.4, 0.4, -1.3, -0.6, 0.4])
    v, cotangent = torch.tensor(rng.normal(size=7)), torch.tensor(rng.normal(size=7))
    for p, hair in ((1.0, 1e-8), (2.0, 1e-8), (1.5, 1e-10)):
        total = np.zeros(7)
        orders = all_orders(list(s))
        for order in orders:
            moved = torch.tensor(s)
            moved[list(order)] -= hair * torch.arange(7.0, dtype=torch.float64)
            moved.requires_grad_()
            loss = (cotangent * _naive_softsort(moved, 0.7, p, v)).sum()
            total += torch.autograd.grad(loss, moved)[0].numpy()
        found = gradients("softsort", "apply", s, 0.7, p=p, extra=v, cotangent=cotangent)[1]
        tolerance = TIE_DIFFERENCES["hair"] if p == 1.5 else TIES
        _close(f"ties broken by a hair, p = {p}", found, total / len(orders), tolerance)


def test_symmetric_functions_and_shifts():
    """Tied items that carry the same thing have the same gradient; shifts have none."""
    rng = np.random.default_rng(6)
    s = np.array([0.4, -0.6, 0.4, 0.4, -1.3, -0.6])
    for name, tau, options in _settings():
        for product in ("sort", "topk", "quantile", "entropy", "sorted"):
            if product not in _PRODUCTS[name]:
                continue
            extra, cotangent = _example(product, 6, rng)
            ds = gradients(name, product, s, tau, extra=extra, cotangent=cotangent, **options)[1]
            _close(f"{name} {product}: tied scores", ds[[0, 1]], ds[[2, 5]], GRADIENTS["float64"])
            _close(f"{name} {product}: tied scores", ds[0], ds[3], GRADIENTS["float64"])
            if "metric" not in options:
                shift = 0.0 if product == "entropy" else cotangent.sum()
                _close(f"{name} {options} {product}: shift", ds.sum(), shift, GRADIENTS["float64"])


def test_a_mask_is_removal():
    """A mask is the same as removing the items, whatever they hold."""
    rng = np.random.default_rng(7)
    s = np.array([0.4, math.nan, 0.4, -0.6, INF, 1.0, 0.4])
    mask = np.array([1, 0, 1, 1, 0, 1, 1], dtype=bool)
    kept, index = s[mask], np.flatnonzero(mask)
    vectors = ("rank", "rank_descending", "sort", "sorted", "topk_mask", "entropy")
    for name, tau, options in _settings():
        for product in [item for item in vectors if item in _PRODUCTS[name]]:
            by_item = product.startswith(("rank", "topk"))
            cotangent, extra = rng.normal(size=5), 2
            whole = np.zeros(7)
            where, rest = (mask, ~mask) if by_item else (slice(5), slice(5, 7))
            whole[where] = cotangent
            full = {"mask": mask, "extra": extra, **options}
            value, ds, dtau, _ = gradients(name, product, s, tau, cotangent=whole, **full)
            expected = gradients(
                name, product, kept, tau, cotangent=cotangent, extra=extra, **options
            )
            _close(f"{name} {product}: mask", value[where], expected[0], LAST_DIGITS)
            _close(f"{name} {product}: padding", value[rest], 0.0, 0)
            _close(f"{name} {product}: mask, scores", ds[mask], expected[1], VALUES["float64"])
            _close(f"{name} {product}: masked scores", ds[~mask], 0.0, 0)
            _close(f"{name} {product}: mask, tau", dtau, expected[2], VALUES["float64"])
    v = rng.normal(size=7)
    v[1] = math.nan
    value, _, _, dv = gradients(
        "softsort", "apply", s, 0.7, mask=mask, extra=v, cotangent=np.ones(7)
    )
    short = gradients("softsort", "apply", kept, 0.7, extra=v[mask], cotangent=np.ones(5))
    _close("mask: P v", value[:5], short[0], LAST_DIGITS)
    _close("mask: gradient of v", dv[index], short[3], LAST_DIGITS)
    order = [5, 0, 2, 6, 3, 1, 4]
    found = gradients("softsort", "log_prob", s, 0.7, mask=mask, extra=order, cotangent=1.0)
    short = gradients("softsort", "log_prob", kept, 0.7, extra=[3, 0, 1, 4, 2], cotangent=1.0)
    _close("mask: log_prob", found[0], short[0], LAST_DIGITS)
    _close("mask: log_prob, scores", found[1][index], short[1], LAST_DIGITS)


def test_infinite_scores_are_a_limit():
    """Infinite scores are the limit of far scores, where there is one; finite items stay."""
    rng = np.random.default_rng(8)
    s = np.array([0.4, INF, 0.4, 0.25, INF, -INF, 1.1])
    far = np.where(np.isinf(s), np.sign(s) * 1e4, s)
    finite = np.isfinite(s)
    for name, tau, options in _settings():
        # These have no such limit, and ranks by "kl" change when all of them are shifted.
        if "metric" in options or name in ("transport", "fast_soft_rank_kl"):
            continue
        if name.startswith("fast_soft_sort"):
            continue
        tau = tau if options.get("p") != 0.5 else 0.1
        for product in _PRODUCTS[name]:
            if product in ("knn", "sort", "sorted", "topk", "quantile"):
                continue
            extra, cotangent = _example(product, 7, rng)
            extra = [4, 1, 2, 6, 3, 0, 5] if product == "log_prob" else extra
            cotangent = 0 * cotangent if product == "log_matrix" else cotangent
            full = {"extra": extra, "cotangent": cotangent, **options}
            value, ds, _, dextra = gradients(name, product, s, tau, **full)
            limit = gradients(name, product, far, tau, **full)
            if product != "log_matrix":
                _close(f"{name} {product}: limit", value, limit[0], ITERATED)
            _close(
                f"{name} {product}: limit, scores",
                ds[finite],
                limit[1][finite],
                GRADIENTS["float64"],
            )
            _close(f"{name} {product}: infinite scores", ds[~finite], 0.0, 0)
            if dextra is not None:
                _close(f"{name} {product}: limit, extra", dextra, limit[3], GRADIENTS["float64"])
    for name in ("softsort", "transport", "fast_soft_sort_l2", "fast_soft_sort_kl"):
        cotangent = rng.normal(size=7)
        value, ds, _, _ = gradients(name, "sort", s, 0.6, cotangent=cotangent)
        alone = gradients(name, "sort", s[finite], 0.6, cotangent=cotangent[1:5])
        _close(f"{name} sort with infinities", value, [-INF, *alone[0], INF, INF], 0)
        _close(f"{name} sort with infinities, scores", ds[finite], alone[1], LAST_DIGITS)


def test_transport_is_many_iterations():
    """Compare the transport with many plain iterations of Sinkhorn under autograd."""
    rng = np.random.default_rng(9)
    cotangent = torch.tensor(rng.normal(size=(5, 5)))
    s = torch.tensor([0.4, -0.6, 0.4, 0.4, 1.0], dtype=torch.float64, requires_grad=True)
    tau = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
    z = (s - s.mean()) / s.std(unbiased=False)
    log_p = torch.linspace(1, 0, 5, dtype=torch.float64)[:, None] * z[None] / tau
    for _ in range(1500):
        log_p = log_p - torch.logsumexp(log_p, 0, keepdim=True)
        log_p = log_p - torch.logsumexp(log_p, 1, keepdim=True)
    expected = torch.autograd.grad((cotangent * log_p.exp()).sum(), [s, tau])
    value, ds, dtau, _ = gradients(
        "transport", "matrix", s.detach(), tau.detach(), cotangent=cotangent
    )
    _close("transport against Sinkhorn", value, log_p.exp().detach(), ITERATED)
    _close("transport against Sinkhorn, scores", ds, expected[0], GRADIENTS["float64"])
    _close("transport against Sinkhorn, epsilon", dtau, expected[1], GRADIENTS["float64"])
    value, ds, dtau, _ = gradients("transport", "rank", np.ones(4), 0.1, cotangent=np.arange(4.0))
    _close("transport of equal scores", value, 2.5, LAST_DIGITS)
    _close("transport of equal scores has gradient zero", ds, 0.0, 0)


def test_softrank_has_its_expected_ranks():
    """The matrix of SoftRank is doubly stochastic, and has the expected ranks."""
    s = np.array([0.4, -0.6, 0.4, 1.0, 0.4, -2.0])
    value, _, _, _ = gradients("softrank", "matrix", s, 0.3, cotangent=np.ones((6, 6)))
    ranks, ds, _, _ = gradients("softrank", "rank", s, 0.3, cotangent=np.arange(6.0))
    _close("softrank: rows", value.sum(1), 1.0, VALUES["float64"])
    _close("softrank: columns", value.sum(0), 1.0, VALUES["float64"])
    weights = torch.arange(6.0, 0.0, -1.0, dtype=torch.float64)
    _close("softrank: expected ranks", weights @ value, ranks, VALUES["float64"])
    through = gradients(
        "softrank", "matrix", s, 0.3, cotangent=weights[:, None] * torch.arange(6.0)[None]
    )
    _close("softrank: derivative of the expected ranks", through[1], ds, ITERATED)


def test_small_cases_and_errors():
    """N = 0, n = 1, no valid item, and what must be refused."""
    for name, tau, options in _settings():
        for product in _PRODUCTS[name]:
            for n in (0, 1):
                if product in ("log_prob", "quantile", "topk", "topk_mask", "knn"):
                    continue
                extra, cotangent = _example(product, n, np.random.default_rng(n))
                gradients(
                    name, product, np.ones(n), tau, extra=extra, cotangent=cotangent, **options
                )
    none = gradients("softsort", "quantile", [1.0, 2.0], 1.0, mask=[0, 0], extra=0.5, cotangent=1.0)
    _close("quantile of nothing", none[0], math.nan, 0)
    for arguments in (
        ("approximate_rank", "sort", [1.0, 2.0]),
        ("fast_soft_sort_l2", "rank", [1.0, 2.0]),
        ("softsort", "nothing", [1.0, 2.0]),
        ("softsort", "rank", [1.0, math.nan]),
        ("fast_soft_rank_l2", "rank", [1.0, 2.0]),
    ):
        try:
            gradients(*arguments, 1.0, cotangent=[1.0, 1.0])
        except ValueError:
            continue
        raise AssertionError(f"Expected a ValueError for {arguments}.")

"""The brute force of `tie_oracle` on a case of the fuzzer."""

import numpy as np

import tie_oracle
from fuzz_cases import FAMILIES, OF_VALUES, finite_rows, orders_of, spread_of
from fuzz_compare import compare
from fuzz_limits import least_deviation
from tolerances import as_numpy

# The oracle takes all orders of one vector: more would take seconds.
MOST_ORDERS, MOST_ITEMS, MOST_ROWS = 130, 8, 6


def check_oracle(case, g, expected):
    """Brute force over all orders, one vector at a time."""
    if _loses_digits(case) or _is_far(case):
        return
    plan = _oracle_plan(case)
    rows = list(np.ndindex(case.batch if case.product != "knn" else case.values.shape[:1]))
    if plan is None or case.n > MOST_ITEMS or len(rows) > MOST_ROWS:
        return
    if any(orders_of(row) > MOST_ORDERS for row in finite_rows(case)):
        return
    y, sums = case.items_last(expected[0]), {k: np.zeros_like(x) for k, x in _by_row(case).items()}
    values = np.zeros_like(y)
    weights = case.items_last(g)
    for b in rows:
        try:
            found = _of_row(case, plan, b, weights[b])
        except ValueError as error:
            if "kink" in str(error):
                return
            raise
        values[b] = found.pop("value")
        for name, x in found.items():
            if name in sums:
                at = b if sums[name].ndim > x.ndim else ()
                sums[name][at] += x
    gradients = {k: _moved_back(case, k, x) for k, x in expected[1].items()}
    if case.product == "straight_through":
        # Its value, and what its values receive, are those of the exact permutation.
        values, sums["values"] = y, gradients["values"]
    compare(case, "library against oracle", (y, gradients), (values, sums))


def _loses_digits(case):
    """Tell whether the oracle takes differences of numbers far larger than what is left of them.

    Its logits of NeuralSort are sums of scores / tau; its pools are of scores / epsilon for
    FastSoftRank, and of n / epsilon, in units of the scores, for FastSoftSort.
    """
    if np.size(case.tau) == 0:
        return False
    tau = np.min(case.tau)
    largest = max((np.abs(row).max(initial=0.0) for row in finite_rows(case)), default=0.0)
    if case.family.startswith("FastSoftSort"):
        return case.n > 1e3 * tau * largest
    roughly_summed = case.family == "NeuralSort" or case.family.startswith("FastSoftRank")
    return roughly_summed and case.n * largest > 1e3 * tau


def _is_far(case):
    """Tell whether the oracle's probabilities of SoftRank underflow, or leave its quadrature."""
    far = spread_of(case) ** 2 > 100 * np.min(case.tau, initial=np.inf)
    return far and (case.family, case.product) == ("SoftRank", "log_prob")


def _oracle_plan(case):
    """Return the oracle's product, and whether it counts positions from the other end."""
    product, down = case.product, case.descending
    if FAMILIES[case.family].oracle is None:
        return None
    if case.family.startswith("OptimalTransport") and least_deviation(case) is None:
        return None  # all scores are equal: it has no derivative
    if product in ("topk", "topk_mask"):
        return (product, False) if down else None
    if product == "sort" and case.family.startswith("Fast"):
        return None if down else ("sort", False)
    direct = {
        "sort": ("sort", down),
        "argsort": ("argsort", down),
        "sort by": ("apply", not down),
        "rank": ("rank_descending" if down else "rank", False),
        "median": ("quantile", False),
        "rows": ("matrix", False),
        "straight_through": ("apply", False),
    }
    return direct.get(product, (product, False))


def _by_row(case):
    found = {"scores": case.scores, "values": case.values}
    found["tau"] = None if isinstance(case.tau, float) else case.tau
    return {name: np.zeros(x.shape) for name, x in found.items() if x is not None}


def _moved_back(case, name, x):
    along = name == "scores" or (name == "values" and case.product == "sort by")
    return np.moveaxis(x, case.dim, -1) if along and case.product != "knn" else x


def _of_row(case, plan, b, g):
    """Return what the oracle finds for one vector, in the order of the library."""
    product, flipped = plan
    name, settings = FAMILIES[case.family].oracle
    mask = None if case.mask is None else case.mask[() if case.product == "knn" else b]
    s = case.scores if case.product == "knn" else case.scores[b]
    tau = case.tau if np.ndim(case.tau) == 0 else case.tau[b]
    extra = _oracle_extra(case, b)
    if case.product == "rows":
        whole = np.zeros((case.n, case.n))
        np.add.at(whole, list(case.rows), g)
        g = whole
    valid = case.n if mask is None else int(mask.sum())
    turn = np.r_[np.arange(valid)[::-1], np.arange(valid, case.n)] if flipped else slice(None)
    if case.product == "knn":
        s = (case.values[b], s)
    value, ds, dtau, dextra = tie_oracle.gradients(
        name,
        product,
        s,
        tau,
        mask=mask,
        extra=extra,
        cotangent=g[turn] if flipped else g,
        **settings,
    )
    found = {"value": as_numpy(value)[turn] if flipped else as_numpy(value), "tau": as_numpy(dtau)}
    if case.product == "rows":
        found["value"] = found["value"][list(case.rows)]
    if case.product == "knn":
        return found | {"values": as_numpy(ds[0]), "scores": as_numpy(ds[1])}
    found["scores"] = as_numpy(ds)
    return found if dextra is None else found | {"values": as_numpy(dextra)}


def _oracle_extra(case, b):
    product = case.product
    if product == "sort by":
        return case.values[b]
    if product in OF_VALUES:
        return case.values if case.values.ndim <= 2 else case.values[b]
    if product in ("topk", "topk_mask", "knn"):
        return case.k
    if product in ("quantile", "median"):
        return case.q if product == "quantile" else 0.5
    return case.items[b] if product == "log_prob" else None

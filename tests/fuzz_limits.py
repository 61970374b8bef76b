"""How large an error may be in a case of `fuzz_cases.py`: a tolerance times the largest result."""

import numpy as np

from fuzz_cases import FAMILIES, OF_VALUES, finite_rows, knn_distances, spread_of
from tolerances import GRADIENTS, SQUARE_VALUES, VALUES


def value_scale(case):
    """Return the largest that a value can be: errors of rounding are relative to it."""
    n, product = max(case.n, 1), case.product
    if product in ("sort", "topk", "quantile", "median"):
        return _largest(case.scores[case.valid()])
    if product in (*OF_VALUES, "sort by"):
        return _largest(case.values) * (n if product == "transposed" else 1)
    if product in ("argsort", "rank"):
        return float(n)
    if product == "log_prob":
        return n * (_largest_logit(case) + np.log(n) + 1)
    return {"entropy": np.log(n) + 1, "topk_mask": float(case.k)}.get(product, 1.0)


def slope_scale(case):
    """Return the largest that a derivative of a logit by a score can be where it has a weight.

    |u|^p / tau has the slope p |u|^(p - 1) / tau, and a weight above rounding while |u| is at most
    a few tau^(1 / p). exp(-u^2) is a sum of exponentials that cancel: their slopes are those of
    scores tau^(1 / 2) apart, also where all scores are nearer than that.
    """
    family, n = FAMILIES[case.family], max(case.n, 1)
    tau, p, spread = float(np.min(case.tau, initial=np.inf)), family.power, spread_of(case)
    if case.product == "knn":
        # The slope of a squared distance.
        spread_of_points = 2 * np.sqrt(knn_distances(case).max(initial=0.0))
        return spread_of_points * _slope(case, tau, p, spread, n)
    return _slope(case, tau, p, spread, n)


def _slope(case, tau, p, spread, n):
    if not FAMILIES[case.family].has_unit:
        return 1 / (tau * (least_deviation(case) or 1.0))
    if case.family == "NeuralSort":
        return 2 * n / tau
    if p < 1:
        return p * (_least_gap(case) or 1.0) ** (p - 1) / tau
    near = 3 * p * tau ** (-1 / p)
    if case.family == "SoftRank":
        # The logarithm of a Gaussian's tail has a slope that grows.
        return near + (spread / tau if case.product == "log_prob" else 0.0)
    if case.product == "log_prob":
        # No weight is multiplied to it.
        return near + 3 * p * spread ** (p - 1) / tau
    return near


def gradient_scale(case, name):
    """Return the largest that a gradient of an input can be, for weights of about 1."""
    n, value = max(case.n, 1), value_scale(case)
    if name == "values":
        return float(n) if case.product != "knn" else slope_scale(case)
    if case.product == "log_prob":
        value = float(n)
    if name == "tau":
        tau = float(np.min(case.tau, initial=np.inf))
        logit = _largest_logit(case) if case.product == "log_prob" else 1.0
        if case.family == "SoftSort square":
            logit = max(logit, 1.0)  # as in `slope_scale`: exponentials cancel
        return n * value * logit / tau
    of_itself = 1.0 if case.product in ("sort", "topk", "quantile", "median") else 0.0
    return value * slope_scale(case) + of_itself


def _largest(x):
    return float(np.abs(x[np.isfinite(x)]).max(initial=0.0))


def _largest_logit(case):
    tau, spread = float(np.min(case.tau, initial=np.inf)), spread_of(case)
    if not FAMILIES[case.family].has_unit:
        return np.sqrt(max(case.n, 1)) / tau
    factor = case.n if case.family == "NeuralSort" else 2
    return factor * spread ** FAMILIES[case.family].power / tau


def _least_gap(case):
    gaps = [np.diff(np.unique(row)).min(initial=np.inf) for row in finite_rows(case)]
    least = min(gaps, default=np.inf)
    return least if np.isfinite(least) else None


def least_deviation(case):
    return min((row.std() for row in finite_rows(case) if len(np.unique(row)) > 1), default=None)


def has_uncertain_order(case):
    """Tell whether rounding decides which of two neighbours is the nearer one.

    Then so it does about gradients: they are those of a tie, or of either order.
    """
    if case.product != "knn":
        return False
    largest = max(_largest(case.scores[case.valid()]), _largest(case.values)) ** 2
    gaps = (np.diff(np.sort(row)).min(initial=np.inf) for row in finite_rows(case))
    return min(gaps, default=np.inf) < 1e-11 * largest


def tolerance(case, name, dtype="float64"):
    """Return by how much a value (name None) or a gradient may differ."""
    if name is not None:
        return GRADIENTS[dtype] * gradient_scale(case, name)
    table = SQUARE_VALUES if case.family == "SoftSort square" else VALUES
    return table[dtype] * (value_scale(case) + _rounded_on_the_way(case))


# Rounding errors are about this share of the tolerance.
ROUNDING = 1e-3


def _rounded_on_the_way(case):
    """Return the size of an intermediate number whose rounding a value cannot escape.

    KL takes differences of logarithms of sums, which are about log(n) however small the scores are.
    Weights of neighbours depend on their distances in units of tau, and distances are rounded; a
    metric |u|^p with p < 1 is steep besides, at the smallest gap between two of them.
    """
    family = FAMILIES[case.family]
    if case.family.endswith("kl"):
        return ROUNDING * np.log(max(case.n, 1))
    if case.product == "knn":
        tau = float(np.min(case.tau, initial=np.inf))
        slope = _slope(case, tau, family.power, spread_of(case), case.n)
        return ROUNDING * slope * knn_distances(case).max(initial=0.0)
    return 0.0

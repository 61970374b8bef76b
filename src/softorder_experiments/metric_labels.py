"""What tables and figures call the metrics whose names in the records need words."""

from __future__ import annotations

_LABELS = {
    "permutations_right": "sequences sorted correctly",
    "elements_right": "items placed correctly",
    "spearman": "Spearman's rho",
    "spearman_squared": "Spearman's rho squared",
    "r_squared": "R squared",
}


def metric_label(metric: str) -> str:
    """Return the words for a metric."""
    return _LABELS.get(metric, metric.replace("_", " "))

"""The schema of records, by task: the fields that tables, pages and sweeps rely on."""

from __future__ import annotations

from typing import Any

from softorder_experiments.schema import (
    NUMBER,
    OPTIONAL_NUMBER,
    OPTIONAL_TEXT,
    OPTIONAL_WHOLE,
    POSITIVE,
    TEXT,
    TRUTH,
    WHOLE,
    ListOf,
    MapOf,
    Schema,
    find_problem,
)

SCHEMA_VERSION = 1

_EVERY: dict[str, Schema] = {
    "run": TEXT,
    "task": TEXT,
    "seed": WHOLE,
    "seconds": NUMBER,
    "device": TEXT,
    "threads": WHOLE,
    "machine": {"cpu": TEXT, "cores": OPTIONAL_WHOLE},
    "versions": MapOf(OPTIONAL_TEXT),
    "commit": OPTIONAL_TEXT,
    "dirty": TRUTH,
    "date": TEXT,
}
_CONFIG: dict[str, Schema] = {"preset": TEXT, "data": TEXT, "seed": WHOLE}
_TRAINED: dict[str, Schema] = {"best_epoch": WHOLE, "images_per_second": NUMBER}
_METHOD: dict[str, Schema] = {"relaxation": TEXT, "stochastic": TRUTH}
# For each task, the settings and the metrics that its table in the report shows.
_OF_TASK: dict[str, tuple[dict[str, Schema], tuple[str, ...]]] = {
    "sort": ({"n": WHOLE, **_METHOD}, ("permutations_right",)),
    "median": ({"n": WHOLE, **_METHOD}, ("mean_squared_error", "spearman")),
    "knn": (_METHOD, ("accuracy",)),
    **dict.fromkeys(("pixels", "pca", "autoencoder", "classifier"), ({}, ("accuracy",))),
}
SPEED = "speed"
_SPEED: dict[str, Schema] = {
    **_EVERY,
    "config": {
        "method": TEXT,
        "n": WHOLE,
        "epochs": WHOLE,
        "order": TEXT,
        "objective": TEXT,
    },
    "outcome": TEXT,
    "metrics": {},
    "curve": ListOf({"epoch": WHOLE, "loss": NUMBER, "spearman": NUMBER}),
    "limits": {"seconds": NUMBER, "bytes": NUMBER},
}
_TIMED: dict[str, Schema] = {
    "metrics": {"seconds_per_epoch": POSITIVE, "spearman": NUMBER, "memory": {"bytes": NUMBER}}
}


def find_record_problem(content: Any) -> str | None:
    """Return why this version cannot read a line as a record, or None if it can."""
    heading = find_problem({"schema": WHOLE, "task": TEXT}, content)
    if heading:
        return heading
    if content["schema"] != SCHEMA_VERSION:
        return f"schema must be {SCHEMA_VERSION}; got {content['schema']}, from another version"
    if content["task"] == SPEED:
        timed = _TIMED if content.get("outcome") == "ok" else {}
        return (
            find_problem(_SPEED, content)
            or find_problem(timed, content)
            # Not every system reports it.
            or find_problem(OPTIONAL_NUMBER, content.get("other_work"), "other_work")
        )
    return find_problem(_form_of_task(content["task"]), content) or (
        find_problem(_TRAINED, content) if content["curve"] else None
    )


def _form_of_task(task: str) -> Schema:
    settings, needed = _OF_TASK.get(task, ({}, ()))
    metrics = MapOf(NUMBER, needed)
    return {
        **_EVERY,
        "config": {**_CONFIG, **settings},
        "metrics": {"test": metrics, "validation": metrics},
        "curve": ListOf({"epoch": WHOLE, "loss": NUMBER, "validation": metrics}),
    }

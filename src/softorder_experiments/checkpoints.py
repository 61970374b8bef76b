"""Checks that a checkpoint holds a state from which this run can resume."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from softorder_experiments.schema import NUMBER, WHOLE, Kind, ListOf, MapOf, find_problem, shorten

State = Mapping[str, Any]

_ANY = Kind("anything", lambda _: True)
_LOSSES = Kind(
    "a tensor with the loss of each process",
    lambda sums: isinstance(sums, Tensor) and sums.is_floating_point() and sums.dim() == 1,
)
_BY_NUMBER = Kind(
    "an object with a whole number for each weight",
    lambda state: isinstance(state, dict) and all(isinstance(key, int) for key in state),
)


def find_state_problem(
    state: Any, wanted: State, *, steps_per_epoch: int, epochs: int, selection: str
) -> str | None:
    """Return why a run cannot resume from a state, or None if it can.

    Args:
        state: The state that was read.
        wanted: A state of this run at any step, to compare with.
        steps_per_epoch: The run's steps per epoch.
        epochs: The run's epochs.
        selection: The validation metric that chooses the model.
    """
    problem = find_problem(dict.fromkeys(wanted, _ANY), state)
    if problem:
        return problem
    # In this order, because later checks rely on earlier ones.
    return _first(
        check()
        for check in (
            lambda: _find_other_setting(wanted["config"], state["config"]),
            lambda: _find_problem_of_progress(
                state["progress"], steps_per_epoch, epochs, selection
            ),
            lambda: find_difference(wanted["network"], state["network"], "network"),
            lambda: find_difference(wanted["averaged"], state["averaged"], "averaged"),
            lambda: find_difference(
                wanted["best"] if state["progress"]["curve"] else {}, state["best"], "best"
            ),
            lambda: _find_problem_of_optimizer(wanted["optimizer"], state["optimizer"]),
            lambda: find_problem(_LOSSES, state["loss_sums"], "loss_sums"),
        )
    )


def _find_other_setting(mine: State, theirs: Any) -> str | None:
    """Return which setting of the checkpoint differs from the run's, or None."""
    if not isinstance(theirs, dict):
        return f"config must be the settings of the run; got {_describe(theirs)}"
    for name in mine:
        # Compared as JSON: a resumed run reads config.json, which has no tuples.
        here, there = (json.dumps(config.get(name), default=repr) for config in (mine, theirs))
        if here != there:
            return f"{name} must be {here}, as in this run; got {shorten(there)}"
    return None


def _find_problem_of_progress(
    progress: Any, steps_per_epoch: int, epochs: int, selection: str
) -> str | None:
    metrics = MapOf(NUMBER, (selection,))
    entry = {"epoch": WHOLE, "step": WHOLE, "loss": NUMBER, "validation": metrics}
    times = dict.fromkeys(("train_seconds", "seconds"), NUMBER)
    schema = {"step": WHOLE, "curve": ListOf(entry), "best": _ANY, **times, "resumed": WHOLE}
    problem = find_problem(schema, progress, "progress")
    if problem:
        return problem
    if progress.keys() != schema.keys():
        return f"progress must hold {', '.join(schema)}; got {_describe(progress)}"
    step, curve, best = (progress[name] for name in ("step", "curve", "best"))
    if [entry["epoch"] for entry in curve] != list(range(1, len(curve) + 1)):
        return "progress.curve must hold every epoch so far once; got other epochs"
    done = len(curve) * steps_per_epoch
    if not done <= step <= min(done + steps_per_epoch, epochs * steps_per_epoch):
        return f"progress.step must be one after {len(curve)} of {epochs} epochs; got {step}"
    if not curve and best is None:
        return None
    problem = find_problem(entry, best, "progress.best")
    if problem is None and best not in curve:
        return f"progress.best must be a point of the curve; got {shorten(best)}"
    return problem


def _find_problem_of_optimizer(wanted: State, content: Any) -> str | None:
    problem = find_problem({"state": _BY_NUMBER}, content, "optimizer")
    if problem:
        return problem
    # The optimiser has no state for a weight that never had a gradient.
    kept = {number: wanted["state"].get(number) for number in content["state"]}
    return find_difference(kept, content["state"], "optimizer.state")


def find_difference(wanted: Any, content: Any, name: str) -> str | None:
    """Return where a value differs in structure from the wanted one, or None."""
    if isinstance(wanted, Mapping) and isinstance(content, dict):
        if content.keys() == wanted.keys():
            return _first(find_difference(wanted[k], content[k], f"{name}.{k}") for k in wanted)
    elif isinstance(wanted, list | tuple) and isinstance(content, list | tuple):
        if len(content) == len(wanted):
            pairs = enumerate(zip(wanted, content, strict=True))
            return _first(find_difference(w, c, f"{name}[{i}]") for i, (w, c) in pairs)
    elif isinstance(wanted, Tensor) and isinstance(content, Tensor):
        if (content.shape, content.dtype) == (wanted.shape, wanted.dtype):
            return None
    elif type(content) is type(wanted):
        return None
    return f"{name} must be {_describe(wanted)}; got {_describe(content)}"


def _first(problems: Iterable[str | None]) -> str | None:
    return next((problem for problem in problems if problem), None)


def _describe(content: Any) -> str:
    """Describe a value in a few words."""
    if isinstance(content, Tensor):
        return f"a tensor {tuple(content.shape)} of {str(content.dtype).removeprefix('torch.')}"
    if isinstance(content, Mapping):
        return f"an object with the names {shorten(list(content))}"
    if isinstance(content, list | tuple):
        return f"a list of {len(content)}"
    return shorten(content)

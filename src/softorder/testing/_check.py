"""`check_relaxation`: every law that concerns a relaxation, then its report."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import softorder as so
from softorder import _checks, _messages
from softorder.testing._examined import MAIN, Gradient, Operation, offers
from softorder.testing._report import Report, measure
from softorder.testing.laws import LAWS


def check_relaxation(
    relaxation: so.Relaxation,
    *,
    cold: so.Relaxation | Literal[False] | None = None,
    framework: Literal["numpy", "torch"] | None = None,
) -> Report:
    """Examine a relaxation by every law of the contract that concerns it.

    Args:
        relaxation: An object of a class that inherits from `softorder.Relaxation`.
        cold: The same relaxation close to its hard limit; False if it has none. Default: a copy
            with the field `tau` or `epsilon` at 1e-9, if it is a dataclass with such a field.
        framework: "numpy" examines values alone; "torch" examines everything in torch, for a
            relaxation that takes nothing else. Default: values in NumPy, and derivatives in torch
            if it is installed.

    Returns:
        The laws that hold, and what was measured. Print it.

    Raises:
        LawBroken: At the first law that does not hold.

    Example:
        >>> import softorder as so
        >>> from softorder.testing import check_relaxation
        >>> report = check_relaxation(so.SoftSort(tau=0.5))
        >>> report.offers, report.row_stochastic, report.doubly_stochastic
        (('sort', 'rank', 'matrix'), True, False)
    """
    check_arguments(relaxation, framework)
    torch = find_torch(framework)
    cold = colder(relaxation) if cold is None else cold
    missing = {"limit": "no limit is known (pass cold=)"} if cold in (None, False) else {}
    if torch is None:
        reason = 'framework="numpy"' if framework else "torch is not installed"
        missing |= {"derivatives": reason, "gradients": reason}

    def operation(name: str, of: str = "values") -> Operation:
        kind = Gradient if of == "gradients" else Operation
        how = cold if of == "limit" else relaxation
        return kind(name, how, torch, values_in_torch=framework == "torch")

    held, skipped = [], {}
    for law in LAWS:
        names = [name for name in law.operations if offers(relaxation, name)]
        if law.of in missing or not names:
            skipped[law.name] = missing.get(law.of, "no matrix is offered")
            continue
        for name in names:
            law.examine(operation(name, law.of))
        held.append(law.name)
    offered = [operation(name) for name in MAIN if offers(relaxation, name)]
    return measure(offered, laws=tuple(held), skipped=skipped)


def check_arguments(relaxation: Any, framework: Any) -> None:
    if not isinstance(relaxation, so.Relaxation) or not any(offers(relaxation, f) for f in MAIN):
        raise _messages.type_error(
            "relaxation must be an object of a class that inherits from softorder.Relaxation "
            "and has at least one of permutation, rank and sort",
            _messages.describe(relaxation),
            "The class softorder.Relaxation says what they take.",
        )
    if framework is not None:
        fix = "Leave it out for values in NumPy and derivatives in torch."
        _checks.check_choice(framework, {"numpy": 0, "torch": 0}, "framework", fix)


def find_torch(framework: str | None) -> Any:
    """Return torch; None if it is not wanted, or not there and not asked for by name."""
    if framework == "numpy":
        return None
    try:
        import torch
    except ImportError:
        if framework == "torch":
            raise
        return None
    return torch


def colder(relaxation: Any) -> Any:
    """Return the relaxation close to its hard limit; None if its temperature is not known."""
    for temperature in ("tau", "epsilon"):
        if temperature in getattr(relaxation, "__dataclass_fields__", ()):
            return dataclasses.replace(relaxation, **{temperature: 1e-9})
    return None

"""Checks that content read from a file has the structure that the program relies on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_LONGEST = 60
_GREATEST = 1e100  # means and ratios of such numbers do not overflow


@dataclass(frozen=True)
class Kind:
    """The kind of a single value.

    Attributes:
        words: The kind in words, as they follow "must be".
        holds: Tells whether a value is of this kind.
    """

    words: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True)
class ListOf:
    """A list whose entries all have the same schema."""

    entry: Schema


@dataclass(frozen=True)
class MapOf:
    """An object with any names, whose values all have the same schema.

    Attributes:
        value: The schema of the values.
        needed: Names that must be present.
    """

    value: Schema
    needed: tuple[str, ...] = ()


# A mapping gives the schema of each name that an object must have; the object may have more.
Schema = Kind | ListOf | MapOf | Mapping[str, Any]


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _GREATEST
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable()


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and _is_number(value)


# Text is shown on terminals and pages, where control characters do harm.
TEXT = Kind("text without control characters", _is_text)
NUMBER = Kind("a finite number", _is_number)
POSITIVE = Kind("a positive number", lambda value: _is_number(value) and value > 0)
WHOLE = Kind("a whole number", _is_whole)
TRUTH = Kind("true or false", lambda value: isinstance(value, bool))
OPTIONAL_TEXT = Kind(f"{TEXT.words}, or null", lambda value: value is None or _is_text(value))
OPTIONAL_NUMBER = Kind(f"{NUMBER.words}, or null", lambda value: value is None or _is_number(value))
OPTIONAL_WHOLE = Kind(f"{WHOLE.words}, or null", lambda value: value is None or _is_whole(value))


def find_problem(schema: Schema, content: Any, name: str = "") -> str | None:
    """Return a sentence about the first value that does not match the schema, or None.

    Args:
        schema: The schema.
        content: The content that was read.
        name: The name of the content in the sentence.
    """
    if isinstance(schema, Kind):
        return None if schema.holds(content) else _sentence(name, schema.words, content)
    if isinstance(schema, ListOf):
        if not isinstance(content, list):
            return _sentence(name, "a list", content)
        parts = ((schema.entry, entry, f"{name}[{i}]") for i, entry in enumerate(content))
        return _first_problem(parts)
    if not isinstance(content, dict):
        return _sentence(name, "an object with names", content)
    needed = schema.needed if isinstance(schema, MapOf) else schema
    missing = next((key for key in needed if key not in content), None)
    if missing is not None:
        return f"{_join(name, missing)} is missing"
    if isinstance(schema, MapOf):
        strange = next((key for key in content if not _is_text(key)), None)
        if strange is not None:
            return _sentence(f"a name in {name}", TEXT.words, strange)
        return _first_problem(
            (schema.value, value, _join(name, key)) for key, value in content.items()
        )
    return _first_problem((part, content[key], _join(name, key)) for key, part in schema.items())


def _first_problem(parts: Any) -> str | None:
    found = (find_problem(schema, content, name) for schema, content, name in parts)
    return next((problem for problem in found if problem), None)


def _join(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key


def _sentence(name: str, words: str, content: Any) -> str:
    return f"{name or 'it'} must be {words}; got {shorten(content)}"


def shorten(content: Any) -> str:
    """Return the repr of a value, which has no control characters, cut to fit a line."""
    try:
        text = repr(content)
    except (ValueError, RecursionError):  # more digits than Python writes, or nested too deeply
        text = "a value too large to show"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."

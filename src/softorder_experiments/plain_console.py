"""A terminal that shows texts as they are: markup is not obeyed, control characters are visible."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text


class PlainConsole(Console):
    """Rich's console for texts that come from files, folders and users."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return what is shown for a string, in a table too."""
        return super().render_str(escape_control_characters(text), **options)


def escape_control_characters(text: str) -> str:
    """Return a text in which what would command the terminal is written as Python writes it."""
    return "".join(
        char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in text
    )

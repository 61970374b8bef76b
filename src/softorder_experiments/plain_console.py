"""A terminal console that prints text literally: no markup, control characters escaped."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text


class PlainConsole(Console):
    """Rich's console for text from files, folders and users."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Escape a string before it is shown, also in tables."""
        return super().render_str(escape_control_characters(text), **options)


def escape_control_characters(text: str) -> str:
    """Return the text with control characters written as Python escapes."""
    return "".join(
        char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in text
    )

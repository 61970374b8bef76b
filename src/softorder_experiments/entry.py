"""The old name of `__main__`; the script in pyproject.toml still calls it."""

from softorder_experiments.__main__ import main

__all__ = ["main"]

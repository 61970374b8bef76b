"""The command `softorder`; says what to install if the experiments' packages are missing."""

from __future__ import annotations

import importlib.util
import sys

_NEEDED = (
    "torch",
    "jinja2",
    "joblib",
    "lightning_fabric",
    "matplotlib",
    "pooch",
    "rich",
    "sklearn",
    "typer",
)


def main() -> None:
    """Run the command line."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(
            "softorder: the experiments need packages that are not installed "
            f"({', '.join(missing)}). Install them with:\n\n"
            '    pip install "softorder[experiments]"\n\n'
            "The library itself works without them; `python -m softorder info` describes it."
        )
    from softorder_experiments.cli import run_command_line

    run_command_line()


if __name__ == "__main__":
    main()

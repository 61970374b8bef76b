"""Old names of modules, for one release."""

from __future__ import annotations

import importlib
import sys
import warnings


def alias(old: str, new: str, submodules: dict[str, str] | None = None) -> None:
    """Let `import softorder.<old>` give `softorder.<new>`, with a warning.

    Args:
        old: The name that is imported.
        new: The name it has now.
        submodules: Old names of the modules inside it, and their new ones.
    """
    warnings.warn(
        f"softorder.{old} is private now and will be removed in softorder 0.3. Import public names "
        "from softorder, and what a relaxation of your own needs from softorder.extend.",
        DeprecationWarning,
        stacklevel=3,
    )
    names = {"": "", **{f".{before}": f".{now}" for before, now in (submodules or {}).items()}}
    for before, now in names.items():
        sys.modules[f"softorder.{old}{before}"] = importlib.import_module(f"softorder.{new}{now}")

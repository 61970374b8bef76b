"""The old name of `progress_display`; the import contract in pyproject.toml still lists it."""

from softorder_experiments.progress_display import *  # noqa: F403

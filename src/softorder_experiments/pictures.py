"""The old name of `figures`; the import contract in pyproject.toml still lists it."""

from softorder_experiments.figures import *  # noqa: F403

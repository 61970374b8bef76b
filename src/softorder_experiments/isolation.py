"""The old name of `measuring`; the import contract in pyproject.toml still lists it."""

from softorder_experiments.measuring import *  # noqa: F403

"""The old name of `measuring`, which the import contract in pyproject.toml still lists."""

from softorder_experiments.measuring import *  # noqa: F403

"""The old name of `paper_numbers`; the import contract in pyproject.toml still lists it."""

from softorder_experiments.paper_numbers import *  # noqa: F403

"""Relaxations of the argsort operator: one paper, one file, one frozen dataclass."""

from softorder.relaxations.softsort import SoftSort

__all__ = ["SoftSort"]

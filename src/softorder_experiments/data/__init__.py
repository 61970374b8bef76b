"""Images: where they come from, their splits, and the large numbers made of them."""

from softorder_experiments.data.augment import random_crop, random_flip
from softorder_experiments.data.datasets import DATASETS, Pool, Splits, load
from softorder_experiments.data.numbers import LargeNumbers

__all__ = ["DATASETS", "LargeNumbers", "Pool", "Splits", "load", "random_crop", "random_flip"]

"""Images: the data sets, their splits, and large numbers made of digits."""

from softorder_experiments.data.augment import random_crop, random_flip
from softorder_experiments.data.datasets import DATASETS, Pool, Splits, load
from softorder_experiments.data.numbers import LargeNumbers

__all__ = ["DATASETS", "LargeNumbers", "Pool", "Splits", "load", "random_crop", "random_flip"]

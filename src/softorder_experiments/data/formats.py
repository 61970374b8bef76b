"""Reads the file formats of the published images."""

from __future__ import annotations

import gzip
import math
import struct
from pathlib import Path

import numpy

from softorder_experiments.errors import UserError

_UNSIGNED_BYTE = 0x08
_CIFAR_SHAPE = (3, 32, 32)


def read_idx(path: Path) -> numpy.ndarray:
    """Read a gzipped idx file: a magic number, the sizes of the dimensions, then the bytes."""
    with gzip.open(path) as stream:
        content = stream.read()
    zero, kind, dimensions = struct.unpack(">HBB", content[:4])
    sizes = struct.unpack(f">{dimensions}I", content[4 : 4 + 4 * dimensions])
    values = numpy.frombuffer(content, numpy.uint8, offset=4 + 4 * dimensions)
    if zero or kind != _UNSIGNED_BYTE or len(values) != math.prod(sizes):
        raise UserError(
            f"{path} must be an idx file of bytes",
            f"{len(values)} bytes for the sizes {sizes}",
            "Delete it, and `softorder data get` downloads it again",
        )
    return values.reshape(sizes)


def read_cifar(path: Path) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Read images (count, 3, 32, 32) and labels from a binary batch: a label, then its image."""
    rows = numpy.frombuffer(path.read_bytes(), numpy.uint8).reshape(-1, 1 + math.prod(_CIFAR_SHAPE))
    return rows[:, 1:].reshape(-1, *_CIFAR_SHAPE), rows[:, 0]

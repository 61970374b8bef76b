"""The data sets, by name, and how each is split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor

from softorder_experiments.data.files import Download, File, find
from softorder_experiments.data.formats import read_cifar, read_idx
from softorder_experiments.errors import look_up


@dataclass(frozen=True)
class Pool:
    """Images of one split: bytes (count, channels, height, width), labels, and the largest byte."""

    images: Tensor
    labels: Tensor
    white: int = 255

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: slice | Tensor) -> Pool:
        return Pool(self.images[index], self.labels[index], self.white)


Splits = dict[str, Pool]
"""The pools "train", "validation" and "test", which share no image."""


@dataclass(frozen=True)
class Dataset:
    """A data set: its description, its downloads (none for `digits`), and its reader."""

    about: str
    downloads: tuple[Download, ...]
    read: Callable[[tuple[Download, ...]], Splits]


def load(name: str) -> Splits:
    """Return the splits of a data set; its files are found or downloaded, and verified."""
    dataset = look_up("data", name, DATASETS)
    return dataset.read(dataset.downloads)


def _pool(images: numpy.ndarray, labels: numpy.ndarray, white: int = 255) -> Pool:
    # A copy, because torch does not share NumPy's read-only memory.
    return Pool(torch.tensor(images), torch.tensor(labels, dtype=torch.int64), white)


def _splits(train: Pool, validation: Pool, test: Pool) -> Splits:
    return {"train": train, "validation": validation, "test": test}


def _read_digits(_: tuple[Download, ...]) -> Splits:
    """Read scikit-learn's digits: 1,257 / 180 / 360, in a fixed random order."""
    from sklearn.datasets import load_digits

    digits: Any = load_digits()
    everything = _pool(digits.images[:, None].astype(numpy.uint8), digits.target, white=16)
    order = torch.randperm(len(everything), generator=torch.Generator().manual_seed(0))
    shuffled = everything[order]
    return _splits(shuffled[:1257], shuffled[1257:1437], shuffled[1437:])


def _read_mnist(downloads: tuple[Download, ...]) -> Splits:
    """Read 55,000 / 5,000 / 10,000; the first 5,000 are for validation, as for the authors."""
    arrays = [read_idx(path) for path in find(downloads)]
    train, test = (
        _pool(images[:, None], labels)
        for images, labels in zip(arrays[::2], arrays[1::2], strict=True)
    )
    return _splits(train[5_000:], train[:5_000], test)


def _read_cifar10(downloads: tuple[Download, ...]) -> Splits:
    """Read 45,000 / 5,000 / 10,000; the last 5,000 training images are for validation."""
    batches = [read_cifar(path) for path in find(downloads)]
    *training, test = (_pool(*batch) for batch in batches)
    images = torch.cat([pool.images for pool in training])
    labels = torch.cat([pool.labels for pool in training])
    train = Pool(images, labels)
    return _splits(train[:45_000], train[45_000:], test)


_IDX_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


def _idx_files(address: str, folder: str, *checksums: str) -> tuple[Download, ...]:
    return tuple(
        Download(f"{address}/{name}", sha256, (File(f"{folder}/raw/{name}", sha256),))
        for name, sha256 in zip(_IDX_FILES, checksums, strict=True)
    )


_MNIST = _idx_files(
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "MNIST",
    "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
)

_FASHION_MNIST = _idx_files(
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    "FashionMNIST",
    "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
)

_CIFAR10 = (
    Download(
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        tuple(
            File(f"cifar-10-batches-bin/{name}.bin", sha256)
            for name, sha256 in {
                "data_batch_1": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
                "data_batch_2": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
                "data_batch_3": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
                "data_batch_4": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
                "data_batch_5": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
                "test_batch": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
            }.items()
        ),
    ),
)

DATASETS = {
    "digits": Dataset("scikit-learn's 8 x 8 digits, no download", (), _read_digits),
    "mnist": Dataset("handwritten digits, 28 x 28", _MNIST, _read_mnist),
    "fashion-mnist": Dataset("pieces of clothing, 28 x 28", _FASHION_MNIST, _read_mnist),
    "cifar10": Dataset("photographs, 32 x 32, colour", _CIFAR10, _read_cifar10),
}

"""Hard nearest neighbours, and the accuracy of their votes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from softorder_experiments.tasks.base import Metrics, Processes
from softorder_experiments.tasks.images import Images

Features = Callable[[Tensor], Tensor]
_EMBEDDED_AT_ONCE = 500
_DISTANCES_AT_ONCE = 2**24  # 128 MB


def neighbor_accuracy(
    images: Images, features: Features, split: str, k: int, processes: Processes
) -> Metrics:
    """Return the share of queries that their k nearest candidates classify correctly."""
    index, labels = images.candidates(split)
    # Each process computes the features of some candidates; all processes gather all of them.
    size = -(-len(index) // processes.count)
    part = torch.arange(processes.rank * size, (processes.rank + 1) * size) % len(index)
    part = _features(images, features, "train", index[part], processes.device)
    candidates = _exact(processes.gather(part)[: len(index)])

    def classify(points: Tensor) -> Tensor:
        return vote(labels[nearest(points, candidates, k).cpu()], images.classes)

    accuracy = _accuracy(images, lambda x: classify(features(x)), split, processes)
    return {**accuracy, "candidates": len(labels)}


def class_accuracy(images: Images, logits: Features, split: str, processes: Processes) -> Metrics:
    """Return the share of queries whose most likely class is correct."""
    return _accuracy(images, lambda x: logits(x).argmax(-1).cpu(), split, processes)


def _accuracy(images: Images, classify: Features, split: str, processes: Processes) -> Metrics:
    index, truth = images.queries(split)
    mine = slice(processes.rank, None, processes.count)
    found = _features(images, classify, split, index[mine], processes.device)
    right = (found == truth[mine]).sum().to(processes.device)
    total = processes.gather(right[None]).sum().item()
    return {"accuracy": total / len(truth), "queries": len(truth)}


def _features(
    images: Images, features: Features, split: str, index: Tensor, device: torch.device
) -> Tensor:
    """Return the features of images, computed in batches."""
    parts = index.split(_EMBEDDED_AT_ONCE)
    return torch.cat([features(images.of(split, part).to(device)) for part in parts])


def nearest(queries: Tensor, candidates: Tensor, k: int) -> Tensor:
    """Return the indices of the k nearest candidates, nearest first: (queries, k).

    Exact up to float64 rounding, in bounded memory.

    Args:
        queries: (q, d).
        candidates: (m, d).
        k: The number of neighbours, at most m.
    """
    candidates = _exact(candidates)
    norms = candidates.square().sum(-1)
    found = []
    for part in queries.split(max(1, _DISTANCES_AT_ONCE // len(candidates))):
        # |q - c|^2 without |q|^2, which is the same for all.
        distances = torch.addmm(norms, _exact(part), candidates.T, alpha=-2.0)
        found.append(distances.topk(k, largest=False).indices)
    return torch.cat(found)


def _exact(points: Tensor) -> Tensor:
    """Return points in float64, on the CPU if the device (Apple's) has no float64."""
    return (points.cpu() if points.device.type == "mps" else points).double()


def vote(labels: Tensor, classes: int) -> Tensor:
    """Return the class of most neighbours; among tied classes, that of the nearest neighbour.

    Args:
        labels: (queries, k), the classes of the neighbours, nearest first.
        classes: The number of classes.
    """
    # Each vote counts 1 plus a bonus that exceeds the sum of the bonuses of all farther ones.
    bonus = 0.5 ** torch.arange(1, labels.shape[-1] + 1, device=labels.device, dtype=torch.float64)
    of_class = torch.nn.functional.one_hot(labels, classes).to(torch.float64)
    return ((1 + bonus)[:, None] * of_class).sum(-2).argmax(-1)

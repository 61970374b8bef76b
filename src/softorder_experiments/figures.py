"""Figures of a trained model and its learning curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from torch import Tensor

from softorder_experiments.metric_labels import metric_label

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def draw_sorting(
    images: Tensor, values: Tensor, matrix: Tensor, record: Mapping[str, Any], path: Path
) -> None:
    """Draw a sequence of images, the soft permutation of it, and the learning curve.

    Args:
        images: (n, height, width).
        values: The numbers in the images.
        matrix: (n, n), positions by items.
        record: The record of the run, for its curve.
        path: The file to write.
    """
    n = len(images)
    figure = plt.figure(figsize=(11, 3.6), layout="constrained")
    parts: Any = figure.subfigures(1, 3, width_ratios=[0.8, 1, 1.4])
    left, middle, right = parts
    left.suptitle("a test sequence", fontsize=10)
    for image, axes in zip(images, left.subplots(n, 1, squeeze=False)[:, 0], strict=True):
        axes.imshow(image.numpy(), cmap="gray_r")
        axes.set_axis_off()
    _draw_matrix(middle.subplots(), values, matrix)
    _draw_curve(right.subplots(), record, ["elements_right", "permutations_right"])
    _save(figure, path)


def _draw_matrix(axes: Any, values: Tensor, matrix: Tensor) -> None:
    axes.imshow(matrix.numpy(), cmap="cividis", vmin=0, vmax=1)
    axes.set_title("its soft permutation (rings: true positions)", fontsize=10)
    axes.set_xlabel("item, by its true value")
    axes.set_ylabel("position")
    axes.set_xticks(range(len(values)), values.tolist(), rotation=45, fontsize=8)
    axes.set_yticks(range(len(values)), range(1, len(values) + 1))
    # A ring where the truth is: a well sorted sequence has one on each bright cell.
    order = values.argsort(descending=True).tolist()
    axes.scatter(order, range(len(order)), s=60, facecolors="none", edgecolors="tab:orange")


def draw_medians(truth: Tensor, predicted: Tensor, record: Mapping[str, Any], path: Path) -> None:
    """Draw predicted medians against the true ones, and the learning curve."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    left.scatter(truth, predicted, s=10, color="tab:blue")
    ends = (0.0, float(truth.max()))
    left.plot(ends, ends, color="0.7", linewidth=1)
    left.set_title("medians of test sequences", fontsize=10)
    left.set_xlabel("true")
    left.set_ylabel("predicted")
    _draw_curve(right, record, ["spearman", "medians_found"])
    _save(figure, path)


def draw_accuracy(record: Mapping[str, Any], path: Path) -> None:
    """Draw the learning curve of a classifier."""
    figure, axes = plt.subplots(figsize=(5, 3.6), layout="constrained")
    _draw_curve(axes, record, ["accuracy"])
    axes.autoscale(axis="y")  # the interesting part is near 1
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=120, metadata={"Software": None})
    plt.close(figure)


def _draw_curve(axes: Any, record: Mapping[str, Any], metrics: Sequence[str]) -> None:
    curve = record["curve"]
    epochs = [entry["epoch"] for entry in curve]
    for metric, style in zip(metrics, ("-", "--"), strict=False):
        shares = [entry["validation"][metric] for entry in curve]
        axes.plot(epochs, shares, style, color="tab:blue", label=metric_label(metric))
    axes.set_ylim(0, 1)
    axes.set_xlabel("epoch")
    axes.set_title("validation, and the training loss", fontsize=10)
    axes.xaxis.get_major_locator().set_params(integer=True)
    losses = [entry["loss"] for entry in curve]
    loss = axes.twinx()
    loss.plot(epochs, losses, color="0.7", label="loss (right axis)")
    if min(losses) >= 0:
        loss.set_ylim(bottom=0)
    handles = [*axes.get_lines(), *loss.get_lines()]
    loss.legend(handles, [line.get_label() for line in handles], loc="center right", framealpha=0.8)
    axes.spines["top"].set_visible(False)
    loss.spines["top"].set_visible(False)

"""Charts in matplotlib, drawn for light and for dark pages."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

# Okabe and Ito's colours, which colour-blind readers can tell apart; markers and dashes repeat the
# distinction. INK is black on light pages and white on dark ones.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
INK = "ink"
_THEMES: dict[str, dict[str, str]] = {
    "light": {"ink": "#1b1b1b", "grid": "#dddddd"},
    "dark": {"ink": "#e8e8e8", "grid": "#444444"},
}


@dataclass(frozen=True)
class Chart:
    """A figure of the page.

    Attributes:
        name: The name of its file and its anchor.
        title: The title above it.
        alt: A description in words.
        caption: The caption below it.
        light: The SVG for light pages.
        dark: The SVG for dark pages.
        runs: The records of the runs in it.
    """

    name: str
    title: str
    alt: str
    caption: str
    light: str
    dark: str
    runs: tuple[Mapping[str, Any], ...] = ()

    def uri(self, theme: str) -> str:
        """Return the picture as a data URI."""
        text = {"light": self.light, "dark": self.dark}[theme]
        return "data:image/svg+xml;base64," + base64.b64encode(text.encode()).decode()


@dataclass(frozen=True)
class Curve:
    """A line of a chart.

    Attributes:
        label: The label in the legend.
        x: The x coordinates.
        y: The y coordinates.
        color: One of COLORS, or INK.
        style: The line style in matplotlib; "none" for points only.
        marker: The marker of the points; empty for none.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    color: str = INK
    style: str = "-"
    marker: str = ""


@dataclass(frozen=True)
class Axis:
    """A plot of curves, with the labels and scales of its axes."""

    curves: Sequence[Curve]
    x: str
    y: str
    title: str = ""
    log: bool = False
    limits: Mapping[str, float] = field(default_factory=dict)


def draw_curves(axes: Sequence[Axis]) -> tuple[str, str]:
    """Draw plots side by side under one legend; return the light picture and the dark one."""

    def draw(theme: Mapping[str, str]) -> Any:
        width = 5.2 * len(axes) if len(axes) > 1 else 7.0
        names = {curve.label for axis in axes for curve in axis.curves}
        # As many columns as fit: a character is about 1/14 inch wide, a legend mark half an inch.
        columns = max(1, min(3, int(width / (max(map(len, names)) / 14 + 0.7))))
        height = 3.8 + 0.22 * -(-len(names) // columns)
        figure, plots = plt.subplots(
            1, len(axes), figsize=(width, height), layout="constrained", squeeze=False
        )
        labels: dict[str, Any] = {}
        for axis, plot in zip(axes, plots[0], strict=True):
            _plot(plot, axis, theme)
            for line in plot.get_lines():
                labels.setdefault(line.get_label(), line)
        figure.legend(
            list(labels.values()),
            list(labels),
            loc="outside lower center",
            ncols=columns,
            frameon=False,
        )
        return figure

    return both_themes(draw)


def _plot(plot: Any, axis: Axis, theme: Mapping[str, str]) -> None:
    for curve in axis.curves:
        plot.plot(
            curve.x,
            curve.y,
            linestyle=curve.style,
            color=theme["ink"] if curve.color == INK else curve.color,
            marker=curve.marker,
            markersize=4.5,
            # A dollar sign in a run's name must not start a formula.
            label=curve.label.replace("$", r"\$"),
        )
    plot.set(xlabel=axis.x, ylabel=axis.y, title=axis.title)
    if axis.log:
        plot.set(xscale="log", yscale="log")
    else:
        plot.xaxis.get_major_locator().set_params(integer=True)
    if axis.limits:
        plot.set_ylim(**axis.limits)
    plot.grid(which="major", linewidth=0.6)


def both_themes(draw: Callable[[Mapping[str, str]], Any]) -> tuple[str, str]:
    """Return the drawing of a function as SVG, for light and for dark pages."""
    light, dark = (_save(draw, theme) for theme in _THEMES.values())
    return light, dark


def _save(draw: Callable[[Mapping[str, str]], Any], theme: Mapping[str, str]) -> str:
    ink = dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"),
        theme["ink"],
    )
    rest = {
        "grid.color": theme["grid"],
        "axes.titlesize": "medium",
        "axes.spines.top": False,
        "axes.spines.right": False,
        # Keep text as text, and make the file a function of the numbers.
        "svg.fonttype": "none",
        "svg.hashsalt": "softorder",
        "font.family": "sans-serif",
    }
    settings: dict[Any, Any] = {**ink, **rest}
    stream = io.StringIO()
    with plt.rc_context(settings):
        figure = draw(theme)
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
        plt.close(figure)
    return stream.getvalue()

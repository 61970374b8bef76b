"""Makes the table and the figure from the JSON lines."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from benchmarks.cases import BACKWARD, FORWARD, Case, Shape, shape_name
from benchmarks.checks import checks
from benchmarks.registry import IMPLEMENTATIONS, select
from benchmarks.results import Line, Results
from softorder_experiments.measuring import DISTURBANCE, format_seconds

# Okabe and Ito's colours, which colour-blind readers can tell apart; markers repeat it.
STYLES = {
    "dense": {"color": "#000000", "marker": "s"},
    "softorder": {"color": "#0072B2", "marker": "o"},
    "portable": {"color": "#E69F00", "marker": "^"},
    "torch.sort": {"color": "#009E73", "marker": "D"},
    "torchsort": {"color": "#D55E00", "marker": "v"},
}
# More lines could not be told apart.
PICTURED = ("SoftSort", "torch.sort", "torchsort soft_sort")
LINES = {"square": "--", "1.5": ":"}


def write_report(file: Path) -> str:
    """Write table.md and speed.png beside a file of JSON lines; return the table."""
    results = Results.read(file)
    parts = (_origin, _disturbance, _table, _agreement, _checks)
    text = "\n\n".join(part(results) for part in parts)
    (file.parent / "table.md").write_text(text + "\n")
    measured = {case.implementation for case in results.cases}
    pictured = [name for name in select(PICTURED) if name in measured]
    if pictured and importlib.util.find_spec("matplotlib"):
        _picture(results, pictured, file.parent / "speed.png")
    elif pictured:
        text += "\n\nmatplotlib is not installed: no picture."
    return text


def _origin(results: Results) -> str:
    parts = ["# Benchmark results", "Generated from the JSON lines by `python -m benchmarks`."]
    for line in results.origins.values():
        machine, configuration = line["machine"], line["configuration"]
        versions = ", ".join(f"{name} {it}" for name, it in line["versions"].items() if it)
        commit = (line["commit"] or "unknown")[:12] + (" with changes" if line["dirty"] else "")
        parts.append(
            f"{line['date']}, commit {commit}: {machine['cpu']}, {machine['cores']} cores, "
            f"{machine['ram_bytes'] / 2**30:.0f} GiB, {machine['os']}; {versions}; "
            f"{configuration['dtype']}, {configuration['threads']} threads."
        )
    return "\n\n".join(parts)


def _disturbance(results: Results) -> str:
    """Say whether the times are reliable; threads that wait for each other suffer most."""
    disturbed, measurements = results.disturbed(DISTURBANCE)
    if not disturbed:
        return "The machine was otherwise idle."
    return (
        f"**During {disturbed} of {measurements} measurements other processes took more than "
        f"{DISTURBANCE:.0%} of the processors: their times are unreliable.**"
    )


def _table(results: Results) -> str:
    """Return a row for each shape and implementation, in the order of the run."""
    rows = [
        "| shape | implementation | forward | forward + backward | extra memory | speed-up |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    pairs = dict.fromkeys((case.shape, case.implementation) for case in results.cases)
    for shape, name in sorted(pairs, key=lambda pair: (pair[0][1], pair[0][0])):
        case = Case(name, shape)
        line = results.cases.get(case)
        rows.append(
            f"| {shape_name(shape)} | {name} "
            f"| {_time(results.cases.get(Case(name, shape, FORWARD)))} | {_time(line)} "
            f"| {_memory(line)} | {_speed_up(results, case)} |"
        )
    note = (
        "Times are medians. Extra memory is the peak of forward + backward above the state before "
        "it. The last column is the time of a baseline over this time: for SoftSort the dense "
        "formula with the same metric, for NeuralSort the corrected formula at the same "
        "temperature, for FastSoftSort and FastSoftRank (l2) torchsort."
    )
    return "\n".join([*rows, "", note])


def _time(line: Line | None) -> str:
    if line is None or line["outcome"] != "ok":
        return line["outcome"] if line else ""
    return format_seconds(line["seconds"]["median"])


def _memory(line: Line | None) -> str:
    if line is None or line["outcome"] != "ok":
        return ""
    return f"{line['memory']['bytes'] / 1e6:.1f} MB"


def _speed_up(results: Results, case: Case) -> str:
    """Return how many times faster a case is than its baseline."""
    implementation = IMPLEMENTATIONS.get(case.implementation)
    if implementation is None or implementation.baseline is None:
        return ""
    mine = results.seconds(case)
    theirs = results.seconds(Case(implementation.baseline, case.shape))
    return f"{theirs / mine:.3g} x" if mine and theirs else ""


def _agreement(results: Results) -> str:
    """Return the error of each implementation against its reference, or why there is none."""
    rows = [
        "| implementation | error of results | error of gradients | outcome |",
        "| --- | ---: | ---: | --- |",
    ]
    for name, line in results.verifications.items():
        keys = ("value_error", "gradient_error")
        errors = (f"{line[key]:.1e}" if key in line else "" for key in keys)
        rows.append(f"| {name} | {' | '.join(errors)} | {line['outcome']} |")
    return "\n".join(rows)


def _checks(results: Results) -> str:
    """Return a line for each check, if the run measured any of them."""
    every = list(checks())
    if all(check.number(results) is None for check in every):
        return "This run measured nothing that the checks need."
    lines = ["```text", *(check.line(results) for check in every), "```"]
    # Repeated here: disturbances slow the dense formula most, which makes checks pass too easily.
    return "\n".join([_disturbance(results), "", *lines])


def _picture(results: Results, names: list[str], file: Path) -> None:
    """Draw time and memory against n, for one row and for a batch of 20."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(11, 8), sharex="col", sharey="row")
    quantities = (("time (s)", results.seconds, 1.0), ("extra memory (MB)", results.memory, 1e6))
    for row, (label, quantity, unit) in zip(axes, quantities, strict=True):
        row[0].set_ylabel(label)
        for axis, batch in zip(row, (20, 1), strict=True):
            for name in names:
                shapes: list[Shape] = sorted(
                    case.shape
                    for case in results.cases
                    if case == Case(name, (batch, case.shape[1]), BACKWARD) and quantity(case)
                )
                heights = [(quantity(Case(name, shape)) or 0) / unit for shape in shapes]
                axis.plot([n for _, n in shapes], heights, label=name, **_style(name))
            axis.set(xscale="log", yscale="log")
            axis.grid(which="major", color="#dddddd")
    for axis, batch in zip(axes[0], (20, 1), strict=True):
        axis.set_title(f"({batch}, n), forward + backward")
    for axis in axes[1]:
        axis.set_xlabel("n")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=4, frameon=False)
    figure.tight_layout(rect=(0, 0.09, 1, 1))
    figure.savefig(file, dpi=130)
    plt.close(figure)


def _style(name: str) -> dict[str, str]:
    """Return the colour and marker of the family, and the line style of the metric."""
    family, metric = name.split()[0], name.split()[-1]
    return {**STYLES.get(family, {}), "linestyle": LINES.get(metric, "-")}

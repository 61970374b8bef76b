"""The figures made of records: speed against n, learning curves, peers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from softorder_experiments.report.benchmark import Benchmark
from softorder_experiments.report.charts import COLORS, INK, Axis, Chart, Curve, draw_curves
from softorder_experiments.runs import Record
from softorder_experiments.speed import METHODS, is_usual

_OPERATOR_COLORS = {
    "softsort-square": COLORS[0],
    "softsort-abs": COLORS[2],
    "neuralsort": COLORS[1],
}
# Line style and marker of softorder in each framework.
_FRAMEWORK_LOOKS = {"torch": ("-", "o"), "jax": (":", "D"), "tensorflow": (":", "P")}


def of_speed(records: Sequence[Record]) -> Iterator[Chart]:
    """Draw time and memory against n, a figure for each device (the paper's Figure 9)."""
    usual = [record for record in records if record["outcome"] == "ok" and is_usual(record)]
    for device in dict.fromkeys(record["device"] for record in usual):
        here = tuple(record for record in usual if record["device"] == device)
        time = Axis(_by_n(here, _seconds), "n", "seconds per epoch", "time", log=True)
        memory = Axis(_by_n(here, _megabytes), "n", "MB", "peak memory of a step", log=True)
        light, dark = draw_curves([time, memory])
        yield Chart(
            f"speed-{device}",
            f"Figure 9: speed in PyTorch, {device.upper()}",
            "Time per epoch and peak memory against n on logarithmic axes. The dense formulas rise "
            "with the square of n or faster and end at n = 4,000; softorder's lines rise almost "
            "in proportion to n, up to n = 1,000,000.",
            "20 rows of n scores learn to be in order; float32. One step is an epoch; the first "
            "is not timed. Dashed: formulas that build the matrix, in PyTorch as in the paper's "
            "Figure 9; its Figure 6 shows TensorFlow, where we did not run them. Dotted: "
            "softorder in other frameworks, with the step compiled.",
            light,
            dark,
            here,
        )


def _by_n(records: Sequence[Record], value: Callable[[Record], float]) -> list[Curve]:
    curves = []
    for name, method in METHODS.items():
        points = {
            record["config"]["n"]: value(record)
            for record in records
            if record["config"]["method"] == name
        }
        if points:
            style, marker = _look(name)
            sizes = sorted(points)
            curves.append(
                Curve(
                    method.about,
                    sizes,
                    [points[n] for n in sizes],
                    _OPERATOR_COLORS[method.operator],
                    style,
                    marker,
                )
            )
    return curves


def _look(name: str) -> tuple[str, str]:
    """Return line style and marker: dashed for dense methods, dotted outside of torch."""
    if not METHODS[name].is_dense:
        return _FRAMEWORK_LOOKS[METHODS[name].framework]
    return ("-.", "s") if name == "neuralsort-published" else ("--", "^")


def _seconds(record: Record) -> float:
    return record["metrics"]["seconds_per_epoch"]


def _megabytes(record: Record) -> float:
    # Memory is counted in pages, and 0 has no logarithm.
    return max(record["metrics"]["memory"]["bytes"], 4096) / 1e6


def of_learning_to_be_in_order(records: Sequence[Record]) -> Iterator[Chart]:
    """Draw the correlation against the epoch (the paper's Figure 8)."""
    runs = tuple(sorted(filter(_has_learning_curve, records), key=_drawn_after))
    sizes = sorted({record["config"]["n"] for record in runs})
    if not runs:
        return
    axes = [
        Axis(
            [_correlations(run) for run in runs if run["config"]["n"] == n],
            "epoch",
            "Spearman's rho",
            f"n = {n:,}",
            limits={"bottom": -0.05, "top": 1.05},
        )
        for n in sizes
    ]
    light, dark = draw_curves(axes)
    yield Chart(
        "curves-speed",
        "Figure 8: learning curves of the synthetic task",
        "Spearman's correlation rises from 0 to almost 1 within some forty epochs; the dashed "
        "line of each dense formula lies on the solid one of softorder.",
        "The paper's figure shows n = 4,000 in TensorFlow; the loss here is that of the authors' "
        "code behind it. Dashed: formulas that build the matrix; points: softorder in other "
        "frameworks, at every tenth epoch; both at the smaller n only.",
        light,
        dark,
        runs,
    )


def _has_learning_curve(record: Record) -> bool:
    return record["outcome"] == "ok" and record["config"]["objective"] == "curves"


def _drawn_after(run: Record) -> tuple[bool, bool]:
    """Return a sorting key that draws lines on top of those they coincide with."""
    method = METHODS[run["config"]["method"]]
    return method.framework != "torch", method.is_dense


def _correlations(run: Record) -> Curve:
    method, curve = METHODS[run["config"]["method"]], run["curve"]
    color, style, marker = _OPERATOR_COLORS[method.operator], "-", ""
    if method.is_dense:
        color, style = INK, "--"
    elif method.framework != "torch":
        # The curves coincide: draw points on the line of torch, at other epochs per framework.
        first = 4 if method.framework == "jax" else 9
        curve, style, marker = curve[first::10], "none", _FRAMEWORK_LOOKS[method.framework][1]
    epochs = [entry["epoch"] for entry in curve]
    return Curve(method.about, epochs, [entry["spearman"] for entry in curve], color, style, marker)


_CURVES: dict[str, tuple[str, str, str]] = {
    "sort": ("permutations_right", "sequences sorted correctly", "Validation of sort"),
    "median": ("spearman", "Spearman's rho", "Validation of median"),
    "knn": ("accuracy", "accuracy", "Validation of knn"),
}
_OWN_FIGURE = "Not in the paper: every recorded run, in any setting; see the list of runs below."
_NOT_FIGURE_7 = (
    " The paper's Figure 7 shows something else: the training loss of SoftSort and NeuralSort at "
    "n = 15, for sort the mean of 10 runs."
)


def of_training(records: Sequence[Record]) -> Iterator[Chart]:
    """Draw the validation metric against the epoch for each task that was trained."""
    for task, (metric, label, title) in _CURVES.items():
        runs = tuple(record for record in records if record["task"] == task)
        if not runs:
            continue
        curves = [
            Curve(
                _name(run, runs),
                [entry["epoch"] for entry in run["curve"]],
                [entry["validation"][metric] for entry in run["curve"]],
                COLORS[index % len(COLORS)],
                ("-", "--", ":")[index // len(COLORS) % 3],
                "os^vDP"[index % 6],
            )
            for index, run in enumerate(runs)
        ]
        light, dark = draw_curves([Axis(curves, "epoch", f"{label}, on validation")])
        yield Chart(
            f"curves-{task}",
            title,
            f"The {label} on validation against the epoch, a line for each of {len(runs)} runs; "
            "all rise, steeply at first.",
            _OWN_FIGURE + (_NOT_FIGURE_7 if task != "knn" else ""),
            light,
            dark,
            runs,
        )


def _name(run: Record, runs: Sequence[Record]) -> str:
    """Return a short name of a run, with its fingerprint if two runs share the name."""

    def short(run: Record) -> str:
        config = run["config"]
        metric = config.get("metric", "abs")
        method = config["relaxation"] + (f" {metric}" if metric != "abs" else "")
        noise = ", noisy" if config["stochastic"] else ""
        return f"{method}{noise}, {config['data']}, {config['preset']} s{run['seed']}"

    same = sum(short(other) == short(run) for other in runs) > 1
    return short(run) + (f" {run['run'][-8:]}" if same else "")


_HERO: Mapping[str, tuple[str, str, str, str]] = {
    "dense abs": ("the paper's formula (builds the matrix)", INK, "--", "s"),
    "torchsort soft_sort": ("torchsort", COLORS[1], "-", "v"),
    "torch.sort": ("torch.sort (not soft)", COLORS[2], ":", "D"),
    "softorder abs": ("softorder", COLORS[0], "-", "o"),
}


def of_sorting_time(benchmark: Benchmark) -> Iterator[Chart]:
    """Draw the README's figure: the time to sort one row of n scores softly."""
    curves = []
    for name, (label, color, style, marker) in _HERO.items():
        points = benchmark.times(name, batch=1)
        if points:
            curves.append(Curve(label, list(points), list(points.values()), color, style, marker))
    if not curves:
        return
    light, dark = draw_curves([Axis(curves, "n", "seconds, forward + backward", log=True)])
    yield Chart(
        "time",
        "Soft sorting: time against n",
        "Time of a soft sort against n on logarithmic axes. The paper's formula rises with the "
        "square of n and ends at n = 10,000. softorder, torchsort and torch.sort rise almost in "
        "proportion to n up to a million and more; softorder is the fastest of the soft sorts.",
        f"One row of float32 scores, forward + backward. {benchmark.machine}.",
        light,
        dark,
    )


# More lines could not be told apart; the table shows the others.
_PICTURED = ("softorder abs", "torch", "diffsort", "difftopk", "POT", "OTT")


def of_peers(benchmark: Benchmark) -> Iterator[Chart]:
    """Draw all peers: sorted values, and ranks."""
    axes = []
    for title, names in (("sorted values", benchmark.sorts), ("ranks", benchmark.ranks)):
        curves = []
        for index, name in enumerate(name for name in names if name.startswith(_PICTURED)):
            points = benchmark.times(name, batch=1)
            ours = name.startswith("softorder")
            if points:
                curves.append(
                    Curve(
                        name,
                        list(points),
                        list(points.values()),
                        INK if ours else COLORS[index % len(COLORS)],
                        "-" if ours else ("--", "-.", ":")[index // len(COLORS) % 3],
                        "osv^DPX<>*p"[index % 11],
                    )
                )
        axes.append(Axis(curves, "n", "seconds, forward + backward", title, log=True))
    if not any(axis.curves for axis in axes):
        return
    light, dark = draw_curves(axes)
    yield Chart(
        "peers",
        "Peers: time against n",
        "Time against n on logarithmic axes for each package. Packages that build a matrix end "
        "between n = 1,000 and 10,000; softorder, torchsort and those with few targets go on.",
        f"One row of float32 scores, forward + backward. {benchmark.machine}. Each package uses a "
        "temperature of its own convention; the table has all numbers and failures.",
        light,
        dark,
    )

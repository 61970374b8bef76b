"""Tables of the speed experiment for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich import box
from rich.console import Console
from rich.table import Column, Table

from softorder_experiments.measuring import DISTURBANCE, format_seconds, is_disturbed
from softorder_experiments.paper_numbers import paper_numbers
from softorder_experiments.record_schema import SPEED
from softorder_experiments.runs import Record
from softorder_experiments.speed.methods import METHODS


def show_speed(console: Console, records: Sequence[Record]) -> None:
    """Show time, memory and correlation by method and n, then the ratios beside the paper's."""
    for device in dict.fromkeys(record["device"] for record in records):
        here = [record for record in records if record["device"] == device]
        usual = [record for record in here if is_usual(record)]
        for title, cell in _QUANTITIES.items():
            console.print(_table(f"{title}, {device}", usual, cell))
        _show_ratios(console, newest(usual))
    opposite = [record for record in records if record["config"]["order"] == "opposite"]
    if opposite:
        console.print(_table("time per epoch, input in the opposite order", opposite, time_of))
    curves = [record for record in records if record["config"]["objective"] == "curves"]
    if curves:
        title = "Spearman's rho (after epochs), the loss of the paper's learning curves"
        console.print(_table(title, curves, _spearman))
    by_run = {record["run"]: record for record in records}
    if count := sum(map(is_disturbed, by_run.values())):
        console.print(
            f"* {count} measured while other processes used more than {DISTURBANCE:.0%} of the "
            "processors. Run the same command on an idle machine to measure them again.",
            highlight=False,
        )


def is_usual(record: Record) -> bool:
    """Tell whether a point has the printed loss and random initial scores."""
    config = record["config"]
    return config["order"] == "random" and config["objective"] == "printed"


def find_unknown_method(record: Record) -> str | None:
    """Return a problem if this version does not have the method of a record, or None."""
    if record["task"] != SPEED or record["config"]["method"] in METHODS:
        return None
    return f"config.method must be a method of this version; got {record['config']['method']!r}"


def newest(records: Sequence[Record]) -> dict[tuple[str, int], Record]:
    """Return the newest record by method and n."""
    return {(record["config"]["method"], record["config"]["n"]): record for record in records}


def describe(record: Record) -> str:
    """Return a line about one point."""
    config = record["config"]
    about = METHODS[config["method"]].about
    variant = "" if is_usual(record) else f", {config['order']} order, {config['objective']} loss"
    title = f"{about}, n = {config['n']:,}{variant}, {config['epochs']} epochs"
    if record["outcome"] != "ok":
        return f"{title:72} {time_of(record)}"
    rho = record["metrics"]["spearman"]
    return f"{title:72} {time_of(record):>9} {_memory(record):>10}  Spearman {rho:.5f}"


def _table(title: str, records: Sequence[Record], cell: Callable[[Record], str]) -> Table:
    found = newest(records)
    sizes = sorted({n for _, n in found})
    columns = [Column(f"n = {n:,}", justify="right", no_wrap=True) for n in sizes]
    table = Table("", *columns, title=title, box=box.SIMPLE, padding=(0, 1, 0, 0))
    for name, method in METHODS.items():
        if any(key[0] == name for key in found):
            cells = (found.get((name, n)) for n in sizes)
            table.add_row(
                method.about,
                *(_cell(record, cell) for record in cells),
                style=None if method.is_dense else "bold",
            )
    return table


def _cell(record: Record | None, cell: Callable[[Record], str]) -> str:
    if record is None:
        return ""
    return cell(record) if record["outcome"] == "ok" else time_of(record)


def time_of(record: Record) -> str:
    """Return the time of an epoch or why there is none, with * if other processes disturbed it."""
    is_ok = record["outcome"] == "ok"
    text = format_seconds(record["metrics"]["seconds_per_epoch"]) if is_ok else record["outcome"]
    return text + " *" * is_disturbed(record)


def _memory(record: Record) -> str:
    return f"{record['metrics']['memory']['bytes'] / 1e6:,.1f} MB"


def _spearman(record: Record) -> str:
    return f"{record['metrics']['spearman']:.4f} ({record['config']['epochs']})"


_QUANTITIES = {
    "time per epoch": time_of,
    "peak memory of a step": _memory,
    "Spearman's rho (after epochs)": _spearman,
}


def _show_ratios(console: Console, found: dict[tuple[str, int], Record]) -> None:
    """Print the ratios to the time of the dense SoftSort, beside the paper's ratios."""
    for name, ratio in paper_numbers()["speed"]["ratios"].items():
        other = paper_numbers()["speed"]["reference"]
        ratios = [f"{ours:.2g} (n = {n:,})" for n, ours in ratios_of(found, name, other)]
        if ratios:
            console.print(
                f"{METHODS[name].about}, over SoftSort |.|² as printed: {', '.join(ratios)}; "
                f"in the paper, on its CPU: {ratio:g}",
                highlight=False,
            )


def ratios_of(
    found: dict[tuple[str, int], Record], name: str, other: str
) -> list[tuple[int, float]]:
    """Return n and the time of a method over that of another, where neither was disturbed."""
    times = {
        key: record["metrics"]["seconds_per_epoch"]
        for key, record in found.items()
        if record["outcome"] == "ok" and not is_disturbed(record)
    }
    sizes = sorted(n for method, n in times if method == name and (other, n) in times)
    return [(n, times[name, n] / times[other, n]) for n in sizes]

"""Timing loops: one call, many calls, several calls in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

Call = Callable[[], object]


def time_call(call: Call, count: int = 1) -> float:
    """Return the seconds that one call takes, as the mean of a block of calls."""
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begin) / count


def time_calls(call: Call, seconds: float, at_least: int = 1, at_most: int = 10_000) -> list[float]:
    """Return the time of each call, repeated for about that many seconds."""
    times: list[float] = []
    while len(times) < at_most and (len(times) < at_least or sum(times) < seconds):
        times.append(time_call(call))
    return times


def take_turns(
    timers: Mapping[str, Callable[[], float]], rounds: int, seconds: float = 0.0
) -> dict[str, list[float]]:
    """Run several timers in turns (A B, B A, A B, ...), so that all meet the same machine.

    Args:
        timers: By name, functions that measure once and return seconds.
        rounds: The least number of rounds.
        seconds: More rounds follow until this much time has passed.
    """
    times: dict[str, list[float]] = {name: [] for name in timers}
    order, done, begin = list(timers), 0, time.perf_counter()
    while done < rounds or time.perf_counter() - begin < seconds:
        for name in order:
            times[name].append(timers[name]())
        order.reverse()
        done += 1
    return times


def format_seconds(value: float) -> str:
    """Write a short time with its unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-6:.3g} µs"

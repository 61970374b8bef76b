"""Measures time and memory: in a process of its own, in turns, and with an eye on other processes.

The speed experiment and `benchmarks` share it. It imports no framework: torch is imported by the
child process that needs it.
"""

from softorder_experiments.measuring.memory import peak_memory
from softorder_experiments.measuring.other_work import (
    DISTURBANCE,
    OtherWork,
    is_disturbed,
    run_and_watch,
)
from softorder_experiments.measuring.processes import (
    OUT_OF_MEMORY,
    TOO_SLOW,
    Answer,
    Child,
    Limits,
    answer_or_out_of_memory,
    run_in_child,
    serve,
)
from softorder_experiments.measuring.timing import (
    format_seconds,
    take_turns,
    time_call,
    time_calls,
)

__all__ = [
    "DISTURBANCE",
    "OUT_OF_MEMORY",
    "TOO_SLOW",
    "Answer",
    "Child",
    "Limits",
    "OtherWork",
    "answer_or_out_of_memory",
    "format_seconds",
    "is_disturbed",
    "peak_memory",
    "run_and_watch",
    "run_in_child",
    "serve",
    "take_turns",
    "time_call",
    "time_calls",
]

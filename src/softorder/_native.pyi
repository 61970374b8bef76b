"""Types of the native kernel; native/module.cpp checks them when it is called."""

from typing import Any

def sort(scores: Any, valid: Any, order: Any, sorted: Any, threads: int) -> None: ...
def apply(
    sorted: Any,
    order: Any,
    counts: Any,
    scale: Any,
    terms: Any,
    threads: int,
    v: Any,
    y: Any,
    log_z: Any,
) -> None: ...
def apply_backward(
    sorted: Any,
    order: Any,
    counts: Any,
    scale: Any,
    terms: Any,
    threads: int,
    v: Any,
    g_y: Any,
    g_z: Any,
    to_scores: Any,
    to_v: Any,
    to_scale: Any,
) -> None: ...
def apply_transposed(
    sorted: Any,
    order: Any,
    counts: Any,
    scale: Any,
    terms: Any,
    threads: int,
    u: Any,
    w: Any,
) -> None: ...
def apply_transposed_backward(
    sorted: Any,
    order: Any,
    counts: Any,
    scale: Any,
    terms: Any,
    threads: int,
    u: Any,
    g: Any,
    to_scores: Any,
    to_u: Any,
    to_scale: Any,
) -> None: ...
def instruction_set() -> str: ...

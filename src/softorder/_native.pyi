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
    kept: Any = None,
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
    kept: Any = None,
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
def neuralsort_apply(
    sorted: Any,
    order: Any,
    counts: Any,
    scale: Any,
    terms: Any,
    threads: int,
    v: Any,
    y: Any,
    log_z: Any,
    kept: Any = None,
) -> None: ...
def neuralsort_apply_backward(
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
    kept: Any = None,
) -> None: ...
def neuralsort_apply_transposed(
    sorted: Any,
    order: Any,
    counts: Any,
    scale: Any,
    terms: Any,
    threads: int,
    u: Any,
    w: Any,
) -> None: ...
def neuralsort_apply_transposed_backward(
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
def cost(
    sorted: Any,
    order: Any,
    counts: Any,
    scale: Any,
    terms: Any,
    threads: int,
    items: Any,
    out: Any,
) -> None: ...
def cost_backward(
    sorted: Any,
    order: Any,
    counts: Any,
    scale: Any,
    terms: Any,
    threads: int,
    items: Any,
    g: Any,
    to_scores: Any,
    to_scale: Any,
) -> None: ...
def neuralsort_cost(
    sorted: Any,
    order: Any,
    counts: Any,
    scale: Any,
    terms: Any,
    threads: int,
    items: Any,
    out: Any,
) -> None: ...
def neuralsort_cost_backward(
    sorted: Any,
    order: Any,
    counts: Any,
    scale: Any,
    terms: Any,
    threads: int,
    items: Any,
    g: Any,
    to_scores: Any,
    to_scale: Any,
) -> None: ...
def pool_l2(x: Any, first: Any, threads: int) -> None: ...
def pool_kl(x: Any, first: Any, threads: int) -> None: ...
def instruction_set() -> str: ...

"""Measures in a process of its own, under limits: what it runs out of, or dies of, is an answer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from softorder_experiments.memory import available_memory

Answer = dict[str, Any]
OUT_OF_MEMORY = "out of memory"
TOO_SLOW = "too slow"
_SAID_WITHOUT_MEMORY = ("can't allocate memory", "out of memory")


@dataclass(frozen=True)
class Limits:
    """What one measurement may take.

    Attributes:
        time_limit: Seconds after which a process is stopped: "too slow".
        memory_limit: Bytes that a process may allocate: beyond, "out of memory".
        threads: Threads that torch and softorder may use.
    """

    time_limit: float = 300.0
    memory_limit: int = field(default_factory=lambda: int(0.95 * available_memory()))
    threads: int = field(default_factory=lambda: os.cpu_count() or 1)


def ask(
    module: str, action: str, arguments: Mapping[str, Any], limits: Limits, cwd: Path | None = None
) -> Answer:
    """Run a module that serves actions; whatever becomes of it is an answer.

    Args:
        module: What `python -m` runs; it calls `serve`.
        action: Which of its actions.
        arguments: Of the action, as JSON can hold them.
        limits: What it may take.
        cwd: The folder to run it in.

    Returns:
        The action's answer, or {"outcome": why there is none}.
    """
    request = {
        "action": action,
        "arguments": arguments,
        "threads": limits.threads,
        "memory_limit": limits.memory_limit,
    }
    try:
        process = subprocess.run(
            [sys.executable, "-m", module],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=limits.time_limit,
            cwd=cwd,
        )
    except subprocess.TimeoutExpired:
        return {"outcome": TOO_SLOW}
    if process.returncode == 0:
        return json.loads(process.stdout.splitlines()[-1])
    # SIGKILL is how the system ends a process when memory runs out.
    if process.returncode == -signal.SIGKILL or "std::bad_alloc" in process.stderr:
        return {"outcome": OUT_OF_MEMORY}
    print(process.stderr, file=sys.stderr)
    last = process.stderr.strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
    return {"outcome": f"failed: {last[0]}"}


def serve(actions: Mapping[str, Callable[..., Answer]]) -> None:
    """Answer the request on stdin: what a module that `ask` runs does."""
    import torch

    request = json.load(sys.stdin)
    if sys.platform == "linux":
        import resource

        limit = request["memory_limit"]
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    torch.set_num_threads(request["threads"])
    action = actions[request["action"]]
    print(json.dumps(answer_or_out_of_memory(lambda: action(**request["arguments"]))))


def answer_or_out_of_memory(action: Callable[[], Answer]) -> Answer:
    """Return the answer, or that memory did not suffice for it."""
    try:
        return action()
    except (MemoryError, RuntimeError) as error:
        text = str(error).lower()
        if isinstance(error, RuntimeError) and not any(s in text for s in _SAID_WITHOUT_MEMORY):
            raise
        return {"outcome": OUT_OF_MEMORY}

"""Child processes that measure under limits; running out of time or memory is an answer too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from softorder_experiments.memory import available_memory

Answer = dict[str, Any]
OUT_OF_MEMORY = "out of memory"
TOO_SLOW = "too slow"
_OUT_OF_MEMORY_MESSAGES = ("can't allocate memory", "out of memory")


@dataclass(frozen=True)
class Limits:
    """The limits of one measurement.

    Attributes:
        time_limit: Seconds after which the process is stopped: "too slow".
        memory_limit: Bytes that the process may allocate; beyond that, "out of memory".
        threads: Threads that torch and softorder may use.
    """

    time_limit: float = 300.0
    memory_limit: int = field(default_factory=lambda: int(0.95 * available_memory()))
    threads: int = field(default_factory=lambda: os.cpu_count() or 1)


def run_in_child(
    module: str, action: str, arguments: Mapping[str, Any], limits: Limits, cwd: Path | None = None
) -> Answer:
    """Run one action in a new process; return its answer, or {"outcome": why there is none}.

    Args:
        module: The module for `python -m`; it calls `serve`.
        action: The name of one of its actions.
        arguments: The arguments of the action, as JSON values.
        limits: The limits of the process.
        cwd: The folder to run it in.
    """
    try:
        process = subprocess.run(
            [sys.executable, "-m", module],
            input=_request(action, arguments, limits),
            capture_output=True,
            text=True,
            timeout=limits.time_limit,
            cwd=cwd,
        )
    except subprocess.TimeoutExpired:
        return {"outcome": TOO_SLOW}
    if process.returncode == 0:
        return json.loads(process.stdout.splitlines()[-1])
    # The system kills a process with SIGKILL when memory runs out.
    if process.returncode == -signal.SIGKILL or "std::bad_alloc" in process.stderr:
        return {"outcome": OUT_OF_MEMORY}
    print(process.stderr, file=sys.stderr)
    last = process.stderr.strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
    return {"outcome": f"failed: {last[0]}"}


class Child:
    """A process that stays and runs one action after another.

    Args:
        command: The words after `python`; the module calls `serve`.
        limits: Its memory and threads. The time limit does not apply.
        cwd: The folder to run it in.
    """

    def __init__(self, command: Sequence[str], limits: Limits, cwd: Path) -> None:
        self._limits = limits
        self._process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env=os.environ | {"OMP_NUM_THREADS": str(limits.threads)},
        )

    def run(self, action: str, arguments: Mapping[str, Any]) -> Answer:
        """Run one action and return its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(_request(action, arguments, self._limits))
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the child process ended with exit code {self._process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        """Let the process end."""
        self._process.communicate()


def serve(actions: Mapping[str, Callable[..., Answer]]) -> None:
    """Answer each request on stdin: the main function of a module that runs as a child."""
    import torch

    for line in sys.stdin:
        request = json.loads(line)
        if sys.platform == "linux":
            import resource

            limit = request["memory_limit"]
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        torch.set_num_threads(request["threads"])
        answer = _run_action(actions[request["action"]], request["arguments"])
        print(json.dumps(answer), flush=True)


def _run_action(action: Callable[..., Answer], arguments: Mapping[str, Any]) -> Answer:
    return answer_or_out_of_memory(lambda: action(**arguments))


def _request(action: str, arguments: Mapping[str, Any], limits: Limits) -> str:
    request = {
        "action": action,
        "arguments": arguments,
        "threads": limits.threads,
        "memory_limit": limits.memory_limit,
    }
    return json.dumps(request) + "\n"


def answer_or_out_of_memory(action: Callable[[], Answer]) -> Answer:
    """Return the answer of an action, or the outcome "out of memory"."""
    try:
        return action()
    except (MemoryError, RuntimeError) as error:
        text = str(error).lower()
        if isinstance(error, RuntimeError) and not any(s in text for s in _OUT_OF_MEMORY_MESSAGES):
            raise
        return {"outcome": OUT_OF_MEMORY}

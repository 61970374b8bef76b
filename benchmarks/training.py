"""How much the operator, the data and the display add to the training time of the bare network.

python -m benchmarks.training [--steps 40]        needs MNIST (SOFTORDER_DATA)

Times two kinds of training steps in turns: the engine's, and a bare step of the same network and
optimiser on a regression whose images and targets are already in memory. (With the mean score as
the loss, every ReLU would die, and zeros are computed faster.) Prints one JSON line.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from softorder_experiments.config import Execution
from softorder_experiments.devices import make_fabric
from softorder_experiments.engine import Trainer
from softorder_experiments.machine import describe
from softorder_experiments.measuring import take_turns, time_call
from softorder_experiments.memory import keep_freed_memory
from softorder_experiments.progress_display import Display, LiveDisplay
from softorder_experiments.runs import Run
from softorder_experiments.tasks.sort import Sort, paper


def engine_step(trainer: Trainer, display: Display) -> Callable[[], None]:
    """Return a step of the engine, progress display included."""

    def step() -> None:
        trainer.steps(1)
        display.step(trainer.progress.step, 0.0)

    return step


def bare_step(task: Sort) -> Callable[[], None]:
    """Return a step of the network alone."""
    network = task.network()
    optimizer = task.optimizer(network)
    images = torch.rand(task.config.batch, task.config.n, 1, 28, 28 * task.config.digits)
    targets = torch.randn(images.shape[:2])

    def step() -> None:
        loss = (network(images) - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def main() -> None:
    """Measure, and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    count = parser.parse_args().steps
    keep_freed_memory()  # as every run does
    task = Sort(paper({"n": 5}))
    display = LiveDisplay(Console(force_terminal=True, file=io.StringIO()), task.selection)
    run = Run(Path(), "unused: no file is written")
    trainer = Trainer(task, run, make_fabric(Execution(accelerator="cpu"), "32-true"), display)
    with display:
        display.begin(0, task.steps_per_epoch, task.config.epochs)
        steps = {"engine": engine_step(trainer, display), "bare": bare_step(task)}
        timers = {name: partial(time_call, step) for name, step in steps.items()}
        take_turns(timers, rounds=2)  # to warm up
        times = take_turns(timers, rounds=count)
    line = {
        "kind": "training overhead",
        "engine_seconds": statistics.median(times["engine"]),
        "bare_seconds": statistics.median(times["bare"]),
        "ratio": statistics.median(e / b for e, b in zip(*times.values(), strict=True)),
        "threads": torch.get_num_threads(),
        **describe(),
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()

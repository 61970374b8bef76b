"""What the operator, the data and the display add to the bare network's training time.

python -m benchmarks.training [--steps 40]        needs MNIST (SOFTORDER_DATA)

Two kinds of steps take turns, so that both meet the same machine: those of the engine, and those of
the same network and optimiser, for a regression on images and targets that are there already. (The
mean score for a loss would let every ReLU die, and zeros are computed faster.) One JSON line.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console

from softorder_experiments.config import Place
from softorder_experiments.display import Display, Live
from softorder_experiments.engine import Trainer, make_fabric
from softorder_experiments.machine import describe
from softorder_experiments.memory import keep_freed_memory
from softorder_experiments.runs import Run
from softorder_experiments.tasks.sort import Sort, paper


def engine_step(trainer: Trainer, display: Display) -> Callable[[], None]:
    """Return a step of the engine, and what it shows of it."""

    def step() -> None:
        trainer._step()
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


def seconds(step: Callable[[], None]) -> float:
    """Return the time of one step."""
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


def main() -> None:
    """Measure, and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    count = parser.parse_args().steps
    keep_freed_memory()  # as every run does
    task = Sort(paper({"n": 5}))
    display = Live(Console(force_terminal=True, file=io.StringIO()), task.selection)
    run = Run(Path(), "no file of it is written")
    trainer = Trainer(task, run, make_fabric(Place(accelerator="cpu"), "32-true"), display)
    with display:
        display.begin(0, task.steps_per_epoch, task.config.epochs)
        steps = engine_step(trainer, display), bare_step(task)
        for step in steps * 2:
            step()
        turns = [(seconds(steps[0]), seconds(steps[1])) for _ in range(count)]
    engine, bare = (statistics.median(times) for times in zip(*turns, strict=True))
    line = {
        "kind": "training overhead",
        "engine_seconds": engine,
        "bare_seconds": bare,
        "ratio": statistics.median(e / b for e, b in turns),
        "threads": torch.get_num_threads(),
        **describe(),
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()

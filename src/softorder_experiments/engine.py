"""The training loop that all tasks share. A run can be stopped and resumed at any step."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from softorder_experiments import machine
from softorder_experiments.checkpoints import find_state_problem
from softorder_experiments.config import Execution
from softorder_experiments.errors import UserError, report_write_errors
from softorder_experiments.progress_display import Display
from softorder_experiments.record_schema import SCHEMA_VERSION
from softorder_experiments.runs import Record, Run, append_record
from softorder_experiments.schedules import SCHEDULES
from softorder_experiments.stop_signals import stop_signals
from softorder_experiments.tasks.base import (
    Experiment,
    Measurement,
    Metrics,
    Processes,
    Task,
    derive_seed,
)

_DISPLAY_SECONDS = 0.25


class Interrupted(Exception):
    """The user asked to stop, and the checkpoint is written."""


@dataclass
class Progress:
    """The state of a run, apart from the weights and the optimiser.

    Data and noise are drawn from seeds that depend on the step (`tasks.base.derive_seed`), and so
    does the learning rate. The step is therefore the whole state of sampler, random number
    generators and schedule.
    """

    step: int = 0
    curve: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Any] | None = None
    """The entry of the curve with the best validation, whose model is kept."""
    train_seconds: float = 0.0
    seconds: float = 0.0
    resumed: int = 0


class Trainer:
    """Trains, validates and tests one run.

    Args:
        task: The task: data, network, loss, metrics.
        run: The run's files.
        fabric: The devices; its processes are launched.
        display: Shows the progress.
        checkpoint_seconds: Seconds between checkpoints.
        is_stopped: Called after each step; returns whether the run should stop.
    """

    def __init__(
        self,
        task: Task[Any],
        run: Run,
        fabric: Fabric,
        display: Display,
        checkpoint_seconds: float = Execution.checkpoint_seconds,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self.task, self.run, self.fabric, self.display = task, run, fabric, display
        self.checkpoint_seconds = checkpoint_seconds
        self._is_stopped = is_stopped
        self.config = task.config
        self._schedule = SCHEDULES[self.config.schedule]
        self.processes = Processes(
            self.fabric.global_rank, self.fabric.world_size, self.fabric.device, self._gather
        )
        self.progress = Progress()
        # Read now: by the end of the run, the commit on the disk may have changed.
        self._origin = machine.describe()
        self._set_up()

    @property
    def total_steps(self) -> int:
        """Return the number of steps of the whole run."""
        return self.config.epochs * self.task.steps_per_epoch

    def fit(self) -> Record:
        """Train to the end, test the chosen model, append the record, and return it."""
        with stop_signals(self.display.warn) as stop_was_asked, self.display:
            self._restore()
            self._started, self._seconds_before = time.monotonic(), self.progress.seconds
            self.display.begin(self.progress.step, self.task.steps_per_epoch, self.config.epochs)
            self._train(stop_was_asked)
            return self._finish()

    def steps(self, count: int) -> None:
        """Make some steps and nothing else, to measure their time."""
        for _ in range(count):
            self._step()
        if self.fabric.device.type == "cuda":
            torch.cuda.synchronize()

    def _set_up(self) -> None:
        torch.manual_seed(self.config.seed)
        torch.backends.cudnn.deterministic = True  # so that a resumed run is exact on a GPU
        self._module = self.task.network()
        optimizer = self.task.optimizer(self._module)
        self._rates = [group["lr"] for group in optimizer.param_groups]
        self._network, self._optimizer = self.fabric.setup(self._module, optimizer)
        decay = self.config.averaging
        average = get_ema_multi_avg_fn(decay)
        self._averaged = AveragedModel(self._module, multi_avg_fn=average) if decay else None
        self._best: dict[str, Tensor] = {}
        self._loss_sum = torch.zeros((), device=self.fabric.device)  # over the steps of this epoch

    @property
    def _evaluated(self) -> nn.Module:
        return self._averaged.module if self._averaged else self._module

    def _train(self, stop_was_asked: Callable[[], bool]) -> None:
        """Step, validate after each epoch, save now and then, until the last step or a stop."""
        self._saved = self._shown = time.monotonic()
        while True:
            if self.progress.step == (len(self.progress.curve) + 1) * self.task.steps_per_epoch:
                self._validate()
                self._save()
            if self.progress.step == self.total_steps:
                return
            self._timed_step()
            stop, due = self._agree(
                stop_was_asked() or self._is_stopped(),
                time.monotonic() - self._saved >= self.checkpoint_seconds,
            )
            if stop or due:
                self._save()
            if stop:
                # Lightning kills all processes when one ends: let the first write its files.
                self.fabric.barrier()
                raise Interrupted

    def _timed_step(self) -> None:
        """Make a step; show the loss of the epoch now and then."""
        progress, begin = self.progress, time.monotonic()
        self._step()
        if time.monotonic() - self._shown >= _DISPLAY_SECONDS:
            steps = progress.step - len(progress.curve) * self.task.steps_per_epoch
            self.display.step(progress.step, self._loss_sum.item() / steps)
            self._shown = time.monotonic()
        progress.train_seconds += time.monotonic() - begin

    def _step(self) -> None:
        progress = self.progress
        # The middle of the step: at its ends, the rate of the first or last step could be 0.
        position = (progress.step + 0.5) / self.total_steps
        share = self._schedule(position, self.config.warmup)
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * share
        # Random draws of network and task depend on the step, not on earlier draws.
        seed = derive_seed(self.config.seed, "step", progress.step, self.processes.rank)
        torch.manual_seed(seed)
        loss = self.task.loss(self._network, progress.step, self.processes)
        self._optimizer.zero_grad()
        self.fabric.backward(loss)
        self._optimizer.step()
        if self._averaged:
            self._averaged.update_parameters(self._module)
        progress.step += 1
        self._loss_sum += loss.detach()

    def _validate(self) -> None:
        self._check_finite()
        progress = self.progress
        loss_sum = self._gather(self._loss_sum[None]).mean().item()
        entry = {
            "epoch": len(progress.curve) + 1,
            "step": progress.step,
            "loss": loss_sum / self.task.steps_per_epoch,
            "validation": self._evaluate("validation"),
        }
        progress.curve.append(entry)
        self._loss_sum.zero_()
        score = self.task.score
        if progress.best is None or score(entry["validation"]) > score(progress.best["validation"]):
            progress.best = entry
            self._best = {
                name: value.detach().clone() for name, value in self._evaluated.state_dict().items()
            }
        self.display.step(progress.step, entry["loss"])
        self.display.epoch(entry)

    def _evaluate(self, split: str) -> dict[str, float]:
        network = self._evaluated.eval()
        self._share_buffers(network)
        with torch.inference_mode(), self.fabric.autocast():
            metrics = self.task.evaluate(network, split, self.processes)
        network.train()
        return metrics

    def _share_buffers(self, network: nn.Module) -> None:
        """Copy the running statistics of the first process, which the checkpoint holds, to all."""
        if self.fabric.world_size > 1:
            for buffer in network.buffers():
                torch.distributed.broadcast(buffer, 0)

    def _finish(self) -> Record:
        self._evaluated.load_state_dict(self._best)
        test = self._evaluate("test")
        self._update_clock()
        record = self._describe(test)
        if self.fabric.is_global_zero:
            self._draw(record)
            append_record(self.run.records, record)
            self.run.finish()
        return record

    def _draw(self, record: Record) -> None:
        partial = self.run.picture.with_suffix(".partial.png")
        with torch.inference_mode(), report_write_errors(self.run.picture):
            self.task.draw(self._evaluated.eval(), record, partial)
            partial.replace(self.run.picture)

    def _describe(self, test: dict[str, float]) -> Record:
        progress = self.progress
        best: dict[str, Any] = progress.best or {}
        metrics = {"test": test, "validation": best["validation"]}
        images = progress.step * self.task.images_per_step
        return {
            **_record_heading(self.task, self.run, metrics),
            "best_epoch": best["epoch"],
            "curve": progress.curve,
            "seconds": round(progress.seconds, 3),
            "images_per_second": round(images / max(progress.train_seconds, 1e-9), 1),
            "resumed": progress.resumed,
            "device": self.fabric.device.type,
            "processes": self.fabric.world_size,
            "threads": torch.get_num_threads(),
            **self._origin,
        }

    def _save(self) -> None:
        """Write a checkpoint: everything that a resumed run needs to continue exactly."""
        self._update_clock()
        self._check_finite()
        self._compare_replicas()
        loss_sums = self._gather(self._loss_sum[None])
        if self.fabric.is_global_zero:
            self.run.save(self._state(loss_sums))
        self._saved = time.monotonic()

    def _state(self, loss_sums: Tensor) -> dict[str, Any]:
        return {
            "config": dataclasses.asdict(self.config),
            "progress": dataclasses.asdict(self.progress),
            "network": self._module.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "averaged": self._averaged.state_dict() if self._averaged else {},
            "best": self._best,
            "loss_sums": loss_sums,
        }

    def _update_clock(self) -> None:
        self.progress.seconds = self._seconds_before + time.monotonic() - self._started

    def _check_finite(self) -> None:
        """Raise an error if training has diverged, before a checkpoint is written."""
        finite = torch.stack([p.isfinite().all() for p in self._module.parameters()]).all()
        if not (finite and self._loss_sum.isfinite()):
            raise UserError(
                "loss and weights must be finite",
                f"infinity or NaN before step {self.progress.step}",
                "Lower lr or raise tau with --set; the last checkpoint is still finite",
            )

    def _restore(self) -> None:
        """Resume from the checkpoint, if there is one."""
        state = self.run.load()
        if state is None:
            return
        problem = find_state_problem(
            state,
            {
                **self._state(self._loss_sum[None]),
                "optimizer": self._optimizer_after_a_step(),
                "best": self._evaluated.state_dict(),
            },
            steps_per_epoch=self.task.steps_per_epoch,
            epochs=self.config.epochs,
            selection=self.task.selection,
        )
        if problem:
            raise self.run.bad_checkpoint(problem)
        self.progress = Progress(**state["progress"])
        self.progress.resumed += 1
        self._module.load_state_dict(state["network"])
        # Learning rates and other settings come from the configuration.
        self._optimizer.load_state_dict(
            {**self._optimizer.state_dict(), "state": state["optimizer"]["state"]}
        )
        if self._averaged:
            self._averaged.load_state_dict(state["averaged"])
        self._best = state["best"]
        sums = state["loss_sums"]
        # With the same number of processes each takes its own sum, otherwise all take the mean.
        same = len(sums) == self.processes.count
        self._loss_sum.copy_(sums[self.processes.rank] if same else sums.mean())
        self.display.note(f"resuming at step {self.progress.step} of {self.total_steps}")

    def _optimizer_after_a_step(self) -> dict[str, Any]:
        """Return the state of the optimiser after one step, made on a copy of the network."""
        copied = copy.deepcopy(self._module)
        optimizer = self.task.optimizer(copied)
        for parameter in copied.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        return optimizer.state_dict()

    def _compare_replicas(self) -> None:
        """Check that all processes hold the same weights, to the last bit."""
        if self.fabric.world_size == 1:
            return
        bits = [parameter.detach().view(torch.int32) for parameter in self._module.parameters()]
        sums = torch.stack([part.sum() for part in bits])
        if not (self._gather(sums[None]) == sums).all():
            raise RuntimeError(f"the processes hold different weights at step {self.progress.step}")

    def _gather(self, tensor: Tensor) -> Tensor:
        if self.fabric.world_size == 1:
            return tensor
        parts = [torch.empty_like(tensor) for _ in range(self.fabric.world_size)]
        torch.distributed.all_gather(parts, tensor)
        return torch.cat(parts)

    def _agree(self, *wishes: bool) -> list[bool]:
        """Return, for each wish, whether any process has it, so that all act alike at one step."""
        mine = torch.tensor([wishes], device=self.fabric.device)
        return self._gather(mine).any(0).tolist()


def measure(task: Measurement[Any], run: Run, fabric: Fabric) -> Record:
    """Evaluate a task without training, append the record, and return it."""
    began, origin = time.monotonic(), machine.describe()
    alone = Processes(0, 1, fabric.device, lambda tensor: tensor)
    with torch.inference_mode():
        metrics = {split: task.evaluate(split, alone) for split in ("validation", "test")}
    record = {
        **_record_heading(task, run, metrics),
        "curve": [],
        "seconds": round(time.monotonic() - began, 3),
        "device": fabric.device.type,
        "threads": torch.get_num_threads(),
        **origin,
    }
    append_record(run.records, record)
    run.finish()
    return record


def _record_heading(task: Experiment[Any], run: Run, metrics: Mapping[str, Metrics]) -> Record:
    return {
        "schema": SCHEMA_VERSION,
        "run": run.name,
        "task": task.name,
        "config": dataclasses.asdict(task.config),
        "seed": task.config.seed,
        "metrics": metrics,
    }

"""The training loop: one for every task, on one device or several, stopped and resumed at will."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import threadpoolctl
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
    """The user asked to stop; the checkpoint is written."""


@dataclass
class Progress:
    """How far a run is: all that changes beside the weights and the optimiser.

    Data and noise are drawn from seeds of the step (`tasks.base.derive_seed`), and the learning
    rate is a function of it: of sampler, random numbers and schedule, it is the whole state.
    """

    step: int = 0
    curve: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Any] | None = None
    """The point of the curve whose model was chosen."""
    train_seconds: float = 0.0
    seconds: float = 0.0
    resumed: int = 0


class Trainer:
    """Carries out one run.

    Args:
        task: What to learn.
        run: Where its files are.
        fabric: The devices, its processes launched.
        display: Shows how it goes.
        checkpoint_seconds: The time between checkpoints.
        is_stopped: Whether somebody else, asked after each step, wants the run to stop.
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
        # Now, for the code that is running may have changed when the run ends.
        self._origin = machine.describe()
        self._set_up()

    @property
    def total_steps(self) -> int:
        """Return the steps of the whole run."""
        return self.config.epochs * self.task.steps_per_epoch

    def fit(self) -> Record:
        """Train to the end, test the chosen model, append the record, and return it."""
        with stop_signals(self.display.warn) as asked, self.display:
            self._restore()
            self._started, self._seconds_before = time.monotonic(), self.progress.seconds
            self.display.begin(self.progress.step, self.task.steps_per_epoch, self.config.epochs)
            self._train(asked)
            return self._finish()

    def steps(self, count: int) -> None:
        """Make some steps and nothing else, to see how long they take."""
        for _ in range(count):
            self._step()
        if self.fabric.device.type == "cuda":
            torch.cuda.synchronize()

    def _set_up(self) -> None:
        torch.manual_seed(self.config.seed)
        torch.backends.cudnn.deterministic = True  # or a resumed run would differ on a GPU
        self._module = self.task.network()
        optimizer = self.task.optimizer(self._module)
        self._rates = [group["lr"] for group in optimizer.param_groups]
        self._network, self._optimizer = self.fabric.setup(self._module, optimizer)
        decay = self.config.averaging
        average = get_ema_multi_avg_fn(decay)
        self._averaged = AveragedModel(self._module, multi_avg_fn=average) if decay else None
        self._best: dict[str, Tensor] = {}
        self._loss_sum = torch.zeros((), device=self.fabric.device)  # of the steps of this epoch

    @property
    def _evaluated(self) -> nn.Module:
        return self._averaged.module if self._averaged else self._module

    def _train(self, asked: Callable[[], bool]) -> None:
        progress, per_epoch = self.progress, self.task.steps_per_epoch
        saved = shown = time.monotonic()
        while True:
            if progress.step == (len(progress.curve) + 1) * per_epoch:
                self._validate()
                self._save()
                saved = time.monotonic()
            if progress.step == self.total_steps:
                return
            begin = time.monotonic()
            self._step()
            now = time.monotonic()
            if now - shown >= _DISPLAY_SECONDS:
                done = progress.step - len(progress.curve) * per_epoch
                self.display.step(progress.step, self._loss_sum.item() / done)
                shown = now
            progress.train_seconds += time.monotonic() - begin
            stopped = asked() or self._is_stopped()
            stop, due = self._agree(stopped, now - saved >= self.checkpoint_seconds)
            if stop or due:
                self._save()
                saved = time.monotonic()
            if stop:
                # Lightning kills all processes when one ends: let the first write its files.
                self.fabric.barrier()
                raise Interrupted

    def _step(self) -> None:
        progress = self.progress
        # In the middle of a step, so that neither the first nor the last is lost to a rate of 0.
        position = (progress.step + 0.5) / self.total_steps
        share = self._schedule(position, self.config.warmup)
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * share
        # Whatever a network or a task draws depends on the step, and not on what came before.
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
        """Give every process the running statistics of the first, which the checkpoint holds."""
        if self.fabric.world_size > 1:
            for buffer in network.buffers():
                torch.distributed.broadcast(buffer, 0)

    def _finish(self) -> Record:
        self._evaluated.load_state_dict(self._best)
        test = self._evaluate("test")
        self._clock()
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
        images = progress.step * self.task.images_per_step
        return {
            **_heading(self.task, self.run, {"test": test, "validation": best["validation"]}),
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
        """Write a checkpoint: all that a resumed run needs to continue as if it had not stopped."""
        self._clock()
        self._check_finite()
        self._compare_replicas()
        loss_sums = self._gather(self._loss_sum[None])
        if not self.fabric.is_global_zero:
            return
        self.run.save(self._state(loss_sums))

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

    def _clock(self) -> None:
        self.progress.seconds = self._seconds_before + time.monotonic() - self._started

    def _check_finite(self) -> None:
        """Refuse to go on, and to write a checkpoint, from what has diverged."""
        finite = torch.stack([p.isfinite().all() for p in self._module.parameters()]).all()
        if not (finite and self._loss_sum.isfinite()):
            raise UserError(
                "loss and weights must be finite",
                f"others before step {self.progress.step}",
                "Lower lr or raise tau with --set; the last checkpoint is from before",
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
        # Rates and the like come from the configuration.
        self._optimizer.load_state_dict(
            {**self._optimizer.state_dict(), "state": state["optimizer"]["state"]}
        )
        if self._averaged:
            self._averaged.load_state_dict(state["averaged"])
        self._best = state["best"]
        sums = state["loss_sums"]
        # Of as many processes as there are now, each takes its own; else their mean.
        same = len(sums) == self.processes.count
        self._loss_sum.copy_(sums[self.processes.rank] if same else sums.mean())
        self.display.note(f"resuming at step {self.progress.step} of {self.total_steps}")

    def _optimizer_after_a_step(self) -> dict[str, Any]:
        """Return what the optimiser keeps once it has made a step, on a copy of the network."""
        copied = copy.deepcopy(self._module)
        optimizer = self.task.optimizer(copied)
        for parameter in copied.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        return optimizer.state_dict()

    def _compare_replicas(self) -> None:
        """See that all processes hold the same weights, to the last bit."""
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
        """Grant what any process wishes, so that all do the same at the same step."""
        mine = torch.tensor([wishes], device=self.fabric.device)
        return self._gather(mine).any(0).tolist()


def measure(task: Measurement[Any], run: Run, fabric: Fabric) -> Record:
    """Measure what needs no training, append the record, and return it."""
    began, origin = time.monotonic(), machine.describe()
    alone = Processes(0, 1, fabric.device, lambda tensor: tensor)
    with torch.inference_mode():
        metrics = {split: task.evaluate(split, alone) for split in ("validation", "test")}
    record = {
        **_heading(task, run, metrics),
        "curve": [],
        "seconds": round(time.monotonic() - began, 3),
        "device": fabric.device.type,
        "threads": torch.get_num_threads(),
        **origin,
    }
    append_record(run.records, record)
    run.finish()
    return record


def _heading(task: Experiment[Any], run: Run, metrics: Mapping[str, Metrics]) -> Record:
    return {
        "schema": SCHEMA_VERSION,
        "run": run.name,
        "task": task.name,
        "config": dataclasses.asdict(task.config),
        "seed": task.config.seed,
        "metrics": metrics,
    }


@contextlib.contextmanager
def limited_threads(count: int) -> Iterator[None]:
    """Let torch and NumPy use so many threads, whatever the environment says."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with threadpoolctl.threadpool_limits(count, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)


def make_fabric(execution: Execution, precision: str) -> Fabric:
    """Return Lightning's Fabric for a place; its processes are not launched yet."""
    # It tells of every process that it starts.
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    try:
        return Fabric(
            accelerator=execution.accelerator,
            devices=execution.devices,
            strategy="ddp" if execution.devices > 1 else "auto",
            precision=precision,  # pyright: ignore[reportArgumentType]
        )
    except (ValueError, RuntimeError, TypeError, ImportError) as error:
        raise UserError(
            f"{execution.devices} devices of {execution.accelerator!r} must be there",
            str(error)[:300],
            "Choose others with --accelerator (auto, cpu, cuda, mps) and --devices",
        ) from error


@contextlib.contextmanager
def stop_signals(warn: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C (or SIGTERM) into a question that is asked between steps.

    The second stops at once; the last checkpoint is then where a resumed run begins. Python gives
    signals to the main thread alone: in another, such as a Dask worker's, nobody asks.
    """
    asked = False
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def ask(number: int, frame: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        warn("stopping after this step; again to stop at once")

    previous = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)

"""The devices and threads that a run uses."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import threadpoolctl
import torch
from lightning_fabric import Fabric

from softorder_experiments.config import Execution
from softorder_experiments.errors import UserError


def make_fabric(execution: Execution, precision: str) -> Fabric:
    """Return Lightning's Fabric for the chosen devices; its processes are not launched yet."""
    # At its default level, Lightning logs every process that it starts.
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    try:
        return Fabric(
            accelerator=execution.accelerator,
            devices=execution.devices,
            strategy="ddp" if execution.devices > 1 else "auto",
            precision=precision,  # pyright: ignore[reportArgumentType]
        )
    except (ValueError, RuntimeError, TypeError, ImportError) as error:
        count = execution.devices
        raise UserError(
            f"--accelerator {execution.accelerator} --devices {count} must name "
            f"{'an available device' if count == 1 else 'available devices'}",
            f"the error {str(error)[:300]!r}",
            "Choose others with --accelerator (auto, cpu, cuda, mps) and --devices",
        ) from error


@contextlib.contextmanager
def limited_threads(count: int) -> Iterator[None]:
    """Limit torch and NumPy to this number of threads, whatever the environment says."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with threadpoolctl.threadpool_limits(count, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)

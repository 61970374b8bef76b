"""The options that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from softorder_experiments.config import Execution

Out = Annotated[
    Path, typer.Option(help="The folder for the records, checkpoints and figures of your runs.")
]
Accelerator = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Devices = Annotated[
    int, typer.Option(help="The number of devices, or of processes when running on the CPU.")
]
CheckpointSeconds = Annotated[float, typer.Option(help="Seconds between checkpoints.")]
Again = Annotated[
    bool, typer.Option("--again", help="Start from the beginning, even if the run is finished.")
]
Data = Annotated[str | None, typer.Option(help="digits, mnist, fashion-mnist or cifar10.")]
Relaxation = Annotated[
    str | None, typer.Option(help="softsort, neuralsort, optimal-transport or softrank.")
]
N = Annotated[int | None, typer.Option(help="The number of images in a sequence.")]
K = Annotated[int | None, typer.Option(help="The number of neighbours that vote.")]
Stochastic = Annotated[
    bool | None,
    typer.Option("--stochastic/--deterministic", help="Train with or without Gumbel noise."),
]
Preset = Annotated[
    str | None,
    typer.Option(help="paper, short or embedded (default: embedded for digits, else paper)."),
]
Seed = Annotated[
    int | None, typer.Option(help="The random seed for weights, data order and noise.")
]
Threads = Annotated[
    int | None,
    typer.Option(
        help="CPU threads per process (default: 1). Another number of threads is another run."
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="Change any other setting; see `softorder list`."
    ),
]


@dataclass(frozen=True)
class RunOptions:
    """The options that every `softorder run TASK` has."""

    data: Data = None
    preset: Preset = None
    seed: Seed = None
    threads: Threads = None
    settings: Set = None
    out: Out = Path(Execution.out)
    accelerator: Accelerator = Execution.accelerator
    devices: Devices = Execution.devices
    checkpoint_seconds: CheckpointSeconds = Execution.checkpoint_seconds
    again: Again = False

    @property
    def execution(self) -> Execution:
        """Return where and how to execute the run."""
        return Execution(str(self.out), self.accelerator, self.devices, self.checkpoint_seconds)


def with_run_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command every option of `RunOptions`; it receives them as its argument `options`."""
    own = inspect.signature(command, eval_str=True).parameters
    hints = get_type_hints(RunOptions, include_extras=True)
    shared = [field.name for field in fields(RunOptions)]
    parameters = [parameter for name, parameter in own.items() if name != "options"] + [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=getattr(RunOptions, name),
            annotation=hints[name],
        )
        for name in shared
    ]

    def with_options(**values: Any) -> None:
        options = RunOptions(**{name: values.pop(name) for name in shared})
        command(**values, options=options)

    with_options.__doc__ = command.__doc__
    with_options.__annotations__ = {each.name: each.annotation for each in parameters}
    with_options.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    return with_options

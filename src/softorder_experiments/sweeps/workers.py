"""The workers that run a sweep: local processes, Ray or Dask, all through joblib."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import joblib

from softorder_experiments.config import require
from softorder_experiments.errors import UserError, look_up


@dataclass(frozen=True)
class Workers:
    """The engine and the number of workers.

    Args:
        engine: `local`, `ray` or `dask`.
        address: The address of a Ray or Dask cluster; None starts one on this machine.
        jobs: Runs at a time; None for the number of cores.
        threads: CPU threads per run.
    """

    engine: str = "local"
    address: str | None = None
    jobs: int | None = None
    threads: int = 1

    def __post_init__(self) -> None:
        """Check the values that can be checked without data."""
        look_up("engine", self.engine, ENGINES)
        require(self, "jobs", self.jobs is None or self.jobs >= 1, "at least 1", "--jobs")
        require(self, "threads", self.threads >= 1, "at least 1", "--threads")
        if self.address and self.engine == "local":
            raise UserError(
                "--address must belong to a cluster",
                f"{self.address!r} with --engine local",
                "Write --engine ray or --engine dask, or leave --address out",
            )

    @contextlib.contextmanager
    def ready(self, most: int) -> Iterator[int]:
        """Start the workers for `call`, at most `most`; yield their number."""
        here = max(1, (os.cpu_count() or 1) // self.threads)
        wanted = self.jobs or (most if self.address else here)
        with ENGINES[self.engine](self, min(wanted, most)) as count:
            yield count


def call(function: Callable[[Any], Any], arguments: Iterable[Any]) -> list[Any]:
    """Call a function for each argument on the workers.

    Each argument is taken when a worker is free. With every engine, a worker that dies raises an
    exception.
    """
    # joblib warns when it replaces a worker whose memory has grown, which is harmless.
    warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
    parallel = joblib.Parallel(batch_size=1, pre_dispatch="n_jobs")  # pyright: ignore[reportArgumentType]
    return list(parallel(joblib.delayed(function)(argument) for argument in arguments))


@contextlib.contextmanager
def _local(workers: Workers, jobs: int) -> Iterator[int]:
    with joblib.parallel_config("loky", n_jobs=jobs, inner_max_num_threads=workers.threads):
        yield jobs


@contextlib.contextmanager
def _ray(workers: Workers, jobs: int) -> Iterator[int]:
    _need("ray", "ray")
    import ray
    from ray.util.joblib import register_ray

    # By default Ray gives its workers the lowest priority, and reports usage statistics.
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    cores = jobs * workers.threads
    new = {} if workers.address else {"num_cpus": cores, "include_dashboard": False}
    with _reaching(workers, "Ray", ConnectionError, ValueError, RuntimeError):
        # Without "local", Ray would connect to any cluster that it finds.
        ray.init(workers.address or "local", logging_level="ERROR", log_to_driver=False, **new)  # pyright: ignore[reportArgumentType]
    try:
        register_ray()
        cores = int(ray.cluster_resources().get("CPU", 1))
        count = min(jobs, max(1, cores // workers.threads))
        with joblib.parallel_config("ray", n_jobs=count):
            yield count
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _dask(workers: Workers, jobs: int) -> Iterator[int]:
    _need("distributed", "dask")
    from distributed import Client, LocalCluster

    with contextlib.ExitStack() as stack:
        address: Any = workers.address
        if address is None:
            # Processes, one run each: torch's seeds and threads belong to a process.
            options: dict[str, Any] = {"threads_per_worker": 1, "dashboard_address": None}
            address = stack.enter_context(LocalCluster(n_workers=jobs, **options))
        with _reaching(workers, "Dask", OSError, TimeoutError, ValueError):
            client: Any = stack.enter_context(Client(address))
        if workers.address is None:
            client.register_plugin(_own_group())
        count = min(jobs, max(1, _count_workers(client)))
        stack.enter_context(joblib.parallel_config("dask", n_jobs=count))
        yield count


def _count_workers(client: Any) -> int:
    """Return the number of Dask workers, which must have one thread each."""
    threads = client.nthreads()
    if any(count != 1 for count in threads.values()):
        raise UserError(
            "each Dask worker must have one thread, because random numbers belong to a process",
            f"workers with {sorted(threads.values())} threads",
            "Start them with `dask worker ADDRESS --nworkers N --nthreads 1`",
        )
    return len(threads)


def _own_group() -> Any:
    """Return a plugin that shields Dask's workers from Ctrl-C, which would end them at once."""
    from distributed import WorkerPlugin

    class OwnGroup(WorkerPlugin):
        def setup(self, worker: Any) -> None:
            if hasattr(os, "setpgid"):  # Windows has no groups of processes
                os.setpgid(0, 0)

    return OwnGroup()


ENGINES: dict[str, Callable[[Workers, int], contextlib.AbstractContextManager[int]]] = {
    "local": _local,
    "ray": _ray,
    "dask": _dask,
}


def _need(module: str, extra: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise UserError(
            f"the package for --engine {extra} must be installed",
            f"no package {module}",
            f'pip install "softorder[{extra}]"',
        )


@contextlib.contextmanager
def _reaching(workers: Workers, name: str, *errors: type[Exception]) -> Iterator[None]:
    try:
        yield
    except errors as error:
        raise UserError(
            f"a {name} cluster must answer at {workers.address or 'this machine'}",
            f"{type(error).__name__}: {str(error)[:200]}",
            "Check --address; without it, a cluster is started on this machine",
        ) from error

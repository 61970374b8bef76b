"""Ctrl-C and SIGTERM: the first asks a run to stop, the second ends it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def stop_signals(warn: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether the user has pressed Ctrl-C (or sent SIGTERM).

    The second signal raises KeyboardInterrupt at once; a resumed run then starts from the last
    checkpoint. Python delivers signals to the main thread only: in another thread, such as a Dask
    worker's, the function always returns False.
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
        warn("stopping after this step; press Ctrl-C again to stop at once")

    previous = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)

"""Forked children, such as the workers of a DataLoader, whatever their parent did before.

The parent is a fresh process, because the process of the suite may run threads of JAX, and these do
not survive a fork.
"""

import multiprocessing
import os
import signal

import pytest

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")


def passes_in_a_fresh_process(function):
    """Tell whether a function of a test file raises nothing; what it raises is printed."""
    process = multiprocessing.get_context("spawn").Process(target=function)
    process.start()
    process.join()
    return process.exitcode == 0


def is_true_in_a_forked_child(function, seconds):
    """Tell whether a function returns True in a forked child, and in time."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(seconds)
        try:
            os._exit(0 if function() else 1)
        finally:
            os._exit(2)
    return os.waitpid(pid, 0)[1] == 0

"""Memory that is freed and kept."""

import subprocess
import sys

import pytest

from softorder_experiments import memory

PAGES = """
import resource, sys, torch
from softorder_experiments.memory import keep_freed_memory
if sys.argv[1] == "keep" and not keep_freed_memory():
    raise SystemExit("not glibc")
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for turn in range(30):
    if turn == 20:  # until then, small blocks find their places between the large ones
        before = faults()
    torch.ones(64 << 20, dtype=torch.uint8)
print(faults() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="about the C library of Linux")
def test_freed_memory_is_not_fetched_again_page_by_page():
    def faults(habit):
        command = [sys.executable, "-c", PAGES, habit]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if "not glibc" in run.stderr:
            pytest.skip("this C library has no such setting")
        return int(run.stdout)

    assert faults("leave") > 10 * max(faults("keep"), 1)


def test_a_c_library_without_the_setting_is_left_alone(monkeypatch):
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: object())
    assert not memory.keep_freed_memory()

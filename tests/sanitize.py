"""Run the kernel's tests on a build with the address and undefined-behaviour sanitizers.

`make sanitize` calls this. The sanitized extension takes the place of the installed one in a
process of its own; everything else is the suite as it is.
"""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]
BUILD = ROOT / "build" / "sanitize"
PROGRAM = """
import importlib.util, sys, torch, pytest
spec = importlib.util.spec_from_file_location("softorder._native", sys.argv[1])
module = sys.modules["softorder._native"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
import softorder._extension
assert softorder._extension.extension is module
# A report goes to the file descriptor, which pytest would keep from us when the process ends.
options = "-q --capture=sys -p no:cacheprovider -p no:xdist".split()
sys.exit(pytest.main([*options, *sys.argv[2:]]))
"""
# Of tests/kernels, those that run the extension; other frameworks are left out.
KERNEL_TESTS = [
    f"kernels/test_{name}.py"
    for name in (
        "accuracy",
        "dispatch",
        "gradients",
        "in_torch",
        "isotonic",
        "log_prob",
        "neuralsort",
        "processes",
        "products",
        "scan",
        "special_inputs",
        "tiled",
    )
]


def run(*command):
    print("+", *command[:4], "...", flush=True)
    subprocess.run([str(part) for part in command], check=True)


def runtime_library(name):
    compiler = os.environ.get("CXX", "g++")
    command = [compiler, f"-print-file-name={name}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def main(tests):
    tools = pathlib.Path(sys.executable).parent
    cmake, ninja = tools / "cmake", tools / "ninja"
    options = [f"-DPython_EXECUTABLE={sys.executable}", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    run(cmake, "-S", ROOT, "-B", BUILD, "-G", "Ninja", "-DSOFTORDER_SANITIZE=ON", *options)
    run(cmake, "--build", BUILD)
    extension = next(BUILD.glob("_native*.so"))
    # The sanitizer catches exceptions only if the C++ library is there when it starts.
    preloaded = [runtime_library(name) for name in ("libasan.so", "libstdc++.so")]
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(preloaded),
        # Python and torch keep memory until the process ends.
        "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    }
    sys.exit(
        subprocess.run(
            [sys.executable, "-c", PROGRAM, extension, *tests],
            cwd=ROOT / "tests",
            env=environment,
            check=False,
        ).returncode
    )


if __name__ == "__main__":
    main(sys.argv[1:] or [*KERNEL_TESTS, "-k", "not compile and not fork"])

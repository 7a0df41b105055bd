"""Processes that need the same kernel at the same time: one compiles it."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from schedsim.kernels.one_compiler import compiled_by_one

CODE = """
import sys, time
sys.path.insert(0, sys.argv[1])
from doubling import double
print("ready", flush=True)
sys.stdin.readline()
assert double(21) == 42
print(sum(double._cache_misses.values()))
"""
MODULE = """
from schedsim.kernels.compiled import kernel

@kernel
def double(x: int) -> int:
    return 2 * x
"""


@pytest.mark.slow
def test_a_second_process_loads_what_the_first_one_made(tmp_path):
    """Both come to a kernel that no cache has; a lock that nobody gives up would show as well."""
    (tmp_path / "doubling.py").write_text(MODULE)
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", CODE, str(tmp_path)]
    both = [subprocess.Popen(command, **options) for _ in range(2)]
    try:
        for process in both:
            assert process.stdout.readline() == "ready\n"
        for process in both:
            process.stdin.write("\n")
            process.stdin.flush()
        misses = sorted(int(process.communicate(timeout=120)[0]) for process in both)
    finally:
        for process in both:
            process.kill()
    assert misses == [0, 1]


def test_patience_ends(tmp_path):
    """A process that is stopped while it compiles does not stop the others."""
    path = tmp_path / "of" / "kernel.lock"
    reached = []
    with compiled_by_one(path), compiled_by_one(path, patience_s=0.05):
        reached.append("both")
    assert reached == ["both"]


def test_the_lock_is_waited_for(tmp_path):
    """The second goes on when the first is done."""
    path = tmp_path / "kernel.lock"
    seen, inside = [], threading.Event()

    def second():
        inside.wait(30)
        with compiled_by_one(path):
            seen.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with compiled_by_one(path):
        inside.set()
        thread.join(0.2)
        seen.append("first")
    thread.join(30)
    assert seen == ["first", "second"]


def test_without_a_place_for_a_file_nobody_waits(tmp_path):
    """As with a package and a home that are read alone."""
    (tmp_path / "file").write_text("")
    with compiled_by_one(tmp_path / "file" / "kernel.lock"):
        pass

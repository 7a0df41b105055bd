"""Kernels compile where nothing can be written, and are cached where something can."""

from __future__ import annotations

import importlib.util
import pickle
import subprocess
import sys

import pytest

CODE = """
import numba.core.caching as caching
caching.CacheImpl._locator_classes = []  # as where neither package nor home can be written
import schedsim
from schedsim.kernels.cached import njit

@njit(cache=True)
def double(x):
    return 2 * x

@njit()
def half(x):
    return x / 2

assert (double(21), half(84)) == (42, 42)
chain = schedsim.Chain.from_arrays(
    "two", 4, forward_s=[1, 1], backward_s=[2, 2], output_bytes=[4, 4], saved_bytes=[10, 10]
)
print(schedsim.simulate(chain, schedsim.Schedule.store_all(chain)).peak_bytes)
"""


def test_without_a_place_for_a_cache():
    """A read-only package and home: the simulator compiles once a process, and answers."""
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["32"]


def loaded(path):
    """The kernel of the module at `path`, as a new process would have it."""
    spec = importlib.util.spec_from_file_location("doubling", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.double


def of_another_version(index):
    """An index as numba writes it, of a record that is called otherwise today."""
    with index.open("rb") as file:
        version = pickle.load(file)
    index.write_bytes(pickle.dumps(version) + b"cschedsim.simulation.course\nBound\n.")


def empty(file):
    """As after a kill, or on a full disk."""
    file.write_bytes(b"")


@pytest.mark.parametrize(
    ("suffix", "spoil"),
    [("nbi", of_another_version), ("nbi", empty), ("nbc", empty)],
)
def test_a_file_that_cannot_be_read_is_written_again(tmp_path, suffix, spoil):
    """Kernels compile again, once."""
    path = tmp_path / "doubling.py"
    path.write_text(
        "from schedsim.kernels.cached import njit\n\n"
        "@njit(cache=True)\ndef double(x):\n    return 2 * x\n"
    )
    assert loaded(path)(21) == 42
    spoil(next(tmp_path.rglob(f"*.{suffix}")))
    again = loaded(path)
    assert again(21) == 42
    assert sum(again.stats.cache_hits.values()) == 0
    third = loaded(path)
    assert third(21) == 42
    assert sum(third.stats.cache_hits.values()) == 1

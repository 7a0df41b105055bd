"""Kernels compile where nothing can be written, and are cached where something can."""

from __future__ import annotations

import subprocess
import sys

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

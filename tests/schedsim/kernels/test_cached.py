"""Kernels compile where nothing can be written, and are cached where something can."""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys

import numba
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


@pytest.mark.slow
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
def test_a_file_that_cannot_be_read_is_written_again(tmp_path, monkeypatch, suffix, spoil):
    """Kernels compile again, once."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")  # beside the module, whatever is set
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


OUTER = """
from schedsim.kernels.{how}
from made_of import FACTOR, times

@kernel
def outer(x: int) -> int:
    return times(x) + FACTOR
"""
INNER = """
from schedsim.kernels.{how}

FACTOR = {factor}

@kernel
def times(x: int) -> int:
    return {product}
"""


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """Write a kernel and another that it calls, each in a module of its own; import the first."""
    monkeypatch.syspath_prepend(tmp_path)
    names = ("outer_kernel", "made_of")

    def write_and_import(how, factor=2, product="2 * x", age_s=0):
        for name, text in zip(names, (OUTER, INNER), strict=True):
            path = tmp_path / f"{name}.py"
            text = text.format(how=how, factor=factor, product=product)
            if not path.exists() or path.read_text() != text:
                path.write_text(text)
                os.utime(path, (10**9 - age_s, 10**9 - age_s))
            monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()
        return importlib.import_module("outer_kernel").outer

    yield write_and_import
    for name in names:
        sys.modules.pop(name, None)


HOW = ["compiled import kernel", "cached import njit; kernel = njit(cache=True)"]


@pytest.mark.parametrize("how", HOW)
def test_a_change_of_what_a_kernel_calls_or_reads_counts(how, imported, monkeypatch, tmp_path):
    """Its machine code holds both; its own file is as it was."""
    monkeypatch.setattr("numba.config.CACHE_DIR", "")
    assert imported(how)(5) == 12
    again = imported(how)
    assert again(5) == 12
    assert sum(again.stats.cache_hits.values()) == 1
    assert imported(how, product="3 * x", age_s=1)(5) == 17
    assert imported(how, product="3 * x", factor=4, age_s=2)(5) == 19

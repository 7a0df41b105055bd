"""Kernels: one variant each, compiled when first called, by whoever calls first."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest

import schedsim.kernels.joined as joined
from schedsim.kernels.compiled import in_python, kernel
from schedsim.kernels.record import Ints


def fresh():
    """Two kernels that no other test has compiled, one inside of the other."""

    @kernel
    def double(value: int) -> int:
        return 2 * value

    @kernel
    def doubled_sum(values: Ints) -> int:
        total = 0
        for value in values:
            total += double(value)
        return total

    return doubled_sum


def test_threads_that_call_first_at_once_all_get_an_answer():
    """One of them compiles, the others wait for it."""
    function, together = fresh(), Barrier(4)

    def call(_: int) -> int:
        together.wait()
        return function(np.arange(5, dtype=np.int64))

    with ThreadPoolExecutor(4) as pool:
        # 2 * (0 + 1 + 2 + 3 + 4)
        assert list(pool.map(call, range(4))) == [20] * 4


def test_another_version_of_numba_compiles_the_usual_way(monkeypatch):
    """The same answer without reaching into numba."""
    monkeypatch.setattr(joined, "TRIED", ("no version",))
    function = fresh()
    assert function(np.arange(5, dtype=np.int64)) == 20


def test_python_runs_the_same_source():
    """What is small is done before a compiler is ready."""
    assert in_python(fresh())(np.arange(5, dtype=np.int64)) == 20


def test_arguments_of_another_kind_are_refused():
    """A second variant would cost seconds, and nobody would know."""
    with pytest.raises(TypeError, match="takes"):
        fresh()(np.arange(5.0))

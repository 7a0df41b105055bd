"""Records: what kernels see of them."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

import numpy as np
import pytest
from numba.core.caching import NullCache

from schedsim.kernels.compiled import at_hand, in_python, kernel, run
from schedsim.kernels.record import Ints, Reals, Record, Table


@dataclass(frozen=True, eq=False)
class Inner(Record):
    values: Ints


@dataclass(frozen=True, eq=False)
class Outer(Record):
    table: Table
    weights: Reals
    inner: Inner
    count: int
    factor: float
    doubled: bool
    name: str


@kernel
def cell(outer: Outer, row: int) -> int:
    return int(outer.table[row, 1] + outer.inner.values[row])


@kernel
def weighted(outer: Outer, found: Ints) -> float:
    total = 0.0
    for row in range(outer.count):
        found[row] = cell(outer, row)
        total += found[row] * outer.weights[row]
    outer.inner.values[0] += 1
    return total * outer.factor * (2.0 if outer.doubled else 1.0)


def make_outer() -> Outer:
    inner = Inner(np.array([10, 20, 30]))
    return Outer(np.arange(6).reshape(3, 2), np.ones(3), inner, 3, 0.5, True, "any")


def test_kernels_read_and_write_every_kind_of_field():
    """Tables, arrays, a record in a record, numbers; writing shows outside, and names stay out."""
    outer, found = make_outer(), np.zeros(3, np.int64)
    # Cells 1 + 10, 3 + 20, 5 + 30; their sum 69, halved and doubled.
    assert weighted(outer, found) == 69.0
    assert found.tolist() == [11, 23, 35]
    assert outer.inner.values.tolist() == [11, 20, 30]


def test_python_runs_the_same_source():
    """With the kernels inside it, and before anything is compiled."""
    outer, found = make_outer(), np.zeros(3, np.int64)
    assert in_python(weighted)(outer, found) == 69.0
    assert found.tolist() == [11, 23, 35]


def test_small_work_does_not_wait_for_the_compiler():
    """Few steps are made by Python; when they have added up, the kernel is compiled."""

    @kernel
    def doubled(values: Ints) -> int:
        return int(values[0]) * 2

    doubled._cache = NullCache()  # type: ignore[attr-defined]
    values = np.array([4])
    assert run(doubled, 10, values) == 8
    assert not doubled.overloads  # type: ignore[attr-defined]
    assert run(doubled, 10**9, values) == 8
    assert at_hand(doubled)


def test_a_pickled_record_has_addresses_of_its_own():
    """What was an address in another process is none here."""
    outer = make_outer()
    weighted(outer, np.zeros(3, np.int64))
    again = pickle.loads(pickle.dumps(outer))
    assert "address" not in again.__dict__
    assert weighted(again, np.zeros(3, np.int64)) == 70.0  # one value is 1 more


@pytest.mark.parametrize(
    "weights", [np.ones(3, np.float32), np.ones((3, 1)), np.ones(6)[::2]], ids=str
)
def test_what_a_kernel_would_misread_is_refused(weights):
    """Another type, another number of axes, gaps."""
    outer = make_outer()
    wrong = Outer(outer.table, weights, outer.inner, 3, 0.5, True, "any")
    with pytest.raises(TypeError, match=r"Outer\.weights"):
        weighted(wrong, np.zeros(3, np.int64))


def test_an_argument_of_another_type_is_refused():
    """Numbers are converted, arrays are not."""
    with pytest.raises(TypeError):
        weighted(make_outer(), np.zeros(3))

"""The tables of adjoint schedules: every sub-chain against a search of everything."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedsim.algorithms.chains._restart_table import fill_steps, fill_uniform, row
from schedsim.algorithms.chains.adjoint_steps import AdjointSteps
from slow_adjoint import least_time
from tiers import examples

SIZES = st.lists(st.integers(1, 3), min_size=3, max_size=3)
DISKS = st.sampled_from([None, (0.0, 0.5), (0.5, 0.25), (2.0, 1.0)])


def steps_of(f, x, a, disk) -> AdjointSteps:
    rates = (math.inf, math.inf) if disk is None else disk
    return AdjointSteps(np.array(f, float), np.array(x), np.array(a), *rates)


def solved(steps: AdjointSteps, slots: int):
    """Both tables, a row per sub-chain, in slots of a byte."""
    n = steps.num_steps
    write, read = steps.write_s_per_byte, steps.read_s_per_byte
    x, a = steps.restart_bytes, steps.adjoint_bytes
    disk_s = np.full((3, n), math.inf)
    if steps.has_disk:
        disk_s = np.stack([x * write, x * read, a * (write + read)]).astype(float)
    shape = (n * (n + 1) // 2, slots + 1)
    free, kept = np.full(shape, -1.0), np.full(shape, -1.0)
    fill_steps.py_func(slots, x, a, steps.forward_s, disk_s, free, kept)
    return free, kept


def test_rows_number_the_sub_chains():
    """Each from 0 on, once, in the order of their first steps and then their lengths."""
    for num in (1, 2, 5):
        rows = [row.py_func(num, i, j) for i in range(num) for j in range(i + 1, num + 1)]
        assert rows == list(range(num * (num + 1) // 2))


@settings(max_examples=examples(20), deadline=None)
@given(f=SIZES, x=SIZES, a=SIZES, slots=st.integers(0, 5), disk=DISKS)
def test_every_entry_is_the_least_time(f, x, a, slots, disk):
    """From a state at hand and, where there is a disk, from one that lies there."""
    steps = steps_of(f, x, a, disk)
    free, kept = solved(steps, slots)
    for i in range(3):
        for j in range(i + 1, 4):
            part = steps_of(f[i:j], x[i:j], a[i:j], disk)
            for m in range(slots + 1):
                at = row.py_func(3, i, j), m
                assert free[at] == pytest.approx(least_time(part, m))
                if disk is not None:
                    assert kept[at] == pytest.approx(least_time(part, m, on_disk=True))


@settings(max_examples=examples(40), deadline=None)
@given(
    num=st.integers(1, 9),
    size=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    slots=st.integers(0, 8),
    disk=DISKS,
)
def test_equal_steps_need_one_row_a_length(num, size, slots, disk):
    """What the tables say of a sub-chain, the short ones say of its length."""
    steps = steps_of([2.0] * num, [size[0]] * num, [size[1]] * num, disk)
    whole_free, whole_kept = solved(steps, slots)
    free, kept = np.full((num, slots + 1), -1.0), np.full((num, slots + 1), -1.0)
    rates = (math.inf, math.inf) if disk is None else disk
    both = size[1] * sum(rates)
    times = (2.0, size[0] * rates[0], size[0] * rates[1], both)
    fill_uniform.py_func(num, slots, size, times, free, kept)
    for i in range(num):
        for j in range(i + 1, num + 1):
            at = row.py_func(num, i, j)
            assert np.allclose(free[j - i - 1], whole_free[at])
            if disk is not None:
                assert np.allclose(kept[j - i - 1], whole_kept[at])


def test_nothing_is_repeated_where_all_adjoint_data_fits():
    """The last step's data needs no slot. With one slot the steps are taken 4, 3 and 2 at a time:

    at last, the slot is given from the first state to the first step's adjoint data.
    """
    steps = steps_of([1, 1, 1, 1], [1] * 4, [1] * 4, None)
    free, _ = solved(steps, 3)
    assert free[row.py_func(4, 0, 4)].tolist() == [np.inf, 9.0, 6.0, 4.0]

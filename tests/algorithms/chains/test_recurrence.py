"""What the recurrences share: which sub-chains are equal, what runs need, the least memory."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
from chains import random_chain
from hypothesis import given, settings
from hypothesis import strategies as st
from listed_plans import schedules
from schedsim.algorithms.chains._recurrence import (
    BACKWARD,
    FORWARD,
    find_classes,
    largest_need,
    needs,
    num_at_most,
    to_units,
)
from schedsim.algorithms.chains.persistent import Problem
from tiers import examples

from schedsim import Chain, Schedule, simulate
from schedsim.kernels.compiled import in_python


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=9))
def test_sub_chains_share_a_row_where_they_are_equal(stages):
    """By comparing all pairs: the same stages, the same input, and neither ends at the loss."""
    kind = np.array([kind for kind, _ in stages])
    key = np.array([-1, *(key for _, key in stages[1:])])
    num = len(stages)
    row_of, row_stage, row_length = find_classes(kind, key)
    seen: dict[tuple, int] = {}
    for i in range(num):
        for n in range(1, num - i + 1):
            at_loss = i if i + n == num else -1
            what = (*kind[i : i + n].tolist(), "from", key[i], at_loss)
            assert seen.setdefault(what, row_of[i, n]) == row_of[i, n]
    assert sorted(seen.values()) == list(range(len(seen)))
    assert row_of[row_stage, row_length].tolist() == list(range(row_stage.size))
    for i in range(num):
        for n in range(2, num - i + 1):
            parts = [row_of[i + 1, n - 1], *row_of[i, 1:n]]
            parts += [row_of[j, i + n - j] for j in range(i + 1, i + n)]
            # Each row reads only earlier ones, but for the sub-chain that stands for it.
            first, length = row_stage[row_of[i, n]], row_length[row_of[i, n]]
            if (first, length) == (i, n):
                assert max(parts) < row_of[i, n]


@given(need=st.integers(0, 200), unit=st.integers(1, 9), rest=st.integers(0, 8))
def test_units_are_the_fewest_that_hold_the_bytes(need, unit, rest):
    """With the rest they hold them, and one fewer does not."""
    found = in_python(to_units)(need, unit, rest)
    assert found * unit + rest >= need
    assert found == 0 or (found - 1) * unit + rest < need


@given(st.lists(st.integers(0, 9), max_size=12), st.integers(0, 3), st.integers(-1, 10))
def test_counting_entries_up_to_a_limit(values, skipped, limit):
    """In a part of an array, as the standard library does."""
    part = sorted(values)
    array = np.array([99] * skipped + part + [-99], dtype=np.int64)
    found = in_python(num_at_most)(array, skipped, len(part), limit)
    assert found == bisect_right(part, limit)


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 10**9), num=st.integers(1, 4))
def test_the_least_memory_is_that_of_some_schedule_and_of_none_less(seed, num):
    """Over all persistent schedules, simulated one by one."""
    chain = random_chain(np.random.default_rng(seed), num)
    assert Problem(chain).min_feasible_bytes == min(peak for peak, _, _ in schedules(chain))


def test_what_the_runs_of_a_stage_need():
    """By hand, and beside what the simulator charges while the stages run one after the other."""
    chain = Chain.from_arrays(
        "two",
        7,
        forward_s=[1, 1],
        backward_s=[1, 1],
        output_bytes=[10, 20],
        saved_bytes=[100, 200],
        forward_workspace_bytes=[3, 4],
        backward_workspace_bytes=[5, 6],
    )
    line = Problem(chain).line
    needed = [in_python(needs)(line, i, 2, i, half) for i in (0, 1) for half in (FORWARD, BACKWARD)]
    # Bundle and workspace, or the loss and its gradient; bundle, gradients and workspace, where the
    # first stage makes none.
    assert needed == [103, 100 + 10 + 5, 200 + 20, 200 + 20 + 10 + 6]
    # The first sub-chain ends before stage 1: the gradient of its output waits.
    assert in_python(needs)(line, 0, 1, 0, FORWARD) == 103 + 10
    assert in_python(largest_need)(line, 0, 1, 0) == 115
    memory = simulate(chain, Schedule.store_all(chain)).memory_bytes
    # Of F0, F1, the loss, B1 and B0, with the chain's input and what else is stored.
    assert memory[0] == 7 + needed[0]
    assert max(memory[1:3]) == 7 + 100 + needed[2]
    assert memory[3] == 7 + 100 + needed[3]
    assert memory[4] == 7 + needed[1]

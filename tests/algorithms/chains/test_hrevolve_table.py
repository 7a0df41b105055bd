"""Every entry of the table of H-Revolve, against a search of everything that can be done."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedsim.algorithms.chains._hrevolve_table import LevelArrays, solve_levels
from slow_levels import least_time
from tiers import examples

COSTS = st.sampled_from([0.0, 0.5, 1.0, 3.0])


def solved(num_steps, forward, turn, slots, writes, reads):
    """Both tables, and the row of each level's first slot."""
    start = np.concatenate([[0], np.cumsum(np.array(slots[:-1], dtype=np.int64) + 1)])
    floats = (np.array(writes, dtype=np.float64), np.array(reads, dtype=np.float64))
    free, kept = solve_levels(
        num_steps, forward, turn, LevelArrays(np.array(slots), *floats, start)
    )
    return free, kept, start


@settings(max_examples=examples(15), deadline=None)
@given(
    slots=st.lists(st.integers(1, 2), min_size=1, max_size=2),
    costs=st.tuples(COSTS, COSTS, COSTS, COSTS),
    forward=st.sampled_from([0.5, 1.0]),
    turn=st.sampled_from([1.0, 2.5]),
)
def test_rows_are_the_least_times(slots, costs, forward, turn):
    """For a state only at hand, and for one that is kept: each level and number of slots."""
    writes, reads = sorted(costs[: len(slots)]), sorted(costs[2 : 2 + len(slots)])
    free, kept, start = solved(4, forward, turn, slots, writes, reads)
    for k, most in enumerate(slots):
        for m in range(most + 1):
            some = ([*slots[:k], m], writes[: k + 1], reads[: k + 1])
            if k or m:
                for n in range(1, 5):
                    best = least_time(n, forward, turn, *some)
                    assert free[start[k] + m, n] == pytest.approx(best)
            if m:
                for n in range(1, 5):
                    best = least_time(n, forward, turn, *some, kept_at=k)
                    assert kept[start[k] + m, n] == pytest.approx(best)


def test_what_no_slot_can_hold_is_infinite():
    """Two steps need a state to come back to; one needs none, and a level without slots keeps none.

    By hand: with one slot, three steps run forwards 2 + 1 times and turn three times; reading
    twice and writing once.
    """
    free, kept, _ = solved(3, 1.0, 10.0, [1], [0.25], [0.5])
    assert free[0].tolist() == [np.inf, 10.0, np.inf, np.inf]
    assert np.isinf(kept[0]).all()
    assert kept[1, 3] == 2 + 1 + 3 * 10 + 2 * 0.5
    assert free[1, 3] == kept[1, 3] + 0.25

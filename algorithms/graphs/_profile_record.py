"""The arrays of a live-memory profile, and the names of their columns."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from schedsim.kernels.compiled import kernel_for as kernel
from schedsim.kernels.record import Ints, RandomState, Reals, Record, Table

# Entries of `Profile.counts`.
NUM_SPARE, NUM_EDITS, NUM_SLOTS, NUM_EXTRA, NUM_REBUILDS, PER_RUN, WORK = range(7)
LIMIT, EXCESS, SUMMED = range(7, 10)

WORK_PER_UNIT = 56_000_000.0
"""Steps counted in ``counts[WORK]`` that one core does in about a second, a unit of effort, on a
tree that fits the nearest caches; see `work_per_unit`."""

# Columns of `Profile.run`.
OP, SLOT, NEXT, PREV, KEPT, EXTRA_AT, EXTRA, SPARE = range(8)
# Columns of `Profile.ends` and of `Profile.tree`.
FIRST, LAST = range(2)
LARGEST, ADDED = range(2)


@dataclass(frozen=True, eq=False)
class Profile(Record):
    """A schedule with its lifetimes and live bytes; every array is changed in place.

    Attributes
    ----------
    run : (most_runs, 8)
        Op of the run (-1: row not in use), slot, next and previous run of that op (-1: none),
        number of optional outputs read, place in the list of extra runs (-1: the op's first run).
        The last two columns are lists of their own: extra runs, in no order, and unused rows.
    end_of : (most_runs * outputs,)
        For each run and output, the run that reads the instance last, or the run itself.
    slot_run : (num_slots,)
        The run in each slot; -1 for none.
    ends : (num_ops + 2, 2)
        First and last run of an op.
    tree : (2 * num_slots, 2)
        Largest live bytes below a node, and what was added to all slots below it.
    journal : (most_edits, 3)
        Kind of edit, run or op, the run that follows.
    counts : (10,)
        Among them `WORK`, which only grows: ranges added to and looked at, readers and candidates
        visited. It measures what a move costs, and is equal on every machine. And, where `SUMMED`
        is 1, `EXCESS`: the bytes above `LIMIT`, summed over all runs.
    live : (num_slots,)
        The values of the tree's leaves, where `SUMMED` is 1.
    total_s : (1,)
    scratch : (4, any)
        Stacks of the moves.
    random : (1,)
    free : bool
        Whether first runs may change their order.
    """

    run: Table
    end_of: Ints
    slot_run: Ints
    ends: Table
    tree: Table
    journal: Table
    counts: Ints
    live: Ints
    total_s: Reals
    scratch: Table
    random: RandomState
    free: bool


# Types of the arguments that a kernel is declared to take.
INT, REAL, BOOL = int, float, bool
INTS, REALS, TABLE = Ints, Reals, Table
PROFILE = Profile


def work_per_unit(num_slots: int) -> float:
    """Steps in ``counts[WORK]`` that a core does in about a second, on a tree of `num_slots`."""
    return WORK_PER_UNIT / (1.0 + max(0.0, math.log2(num_slots / 8192)) / 4)


@kernel(PROFILE)
def random_unit(profile: Profile) -> float:
    """A random number in [0, 1); xorshift64* (Vigna 2016)."""
    x = profile.random[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    profile.random[0] = x
    return float((x * np.uint64(2685821657736338717)) >> np.uint64(11)) * (1.0 / 9007199254740992.0)

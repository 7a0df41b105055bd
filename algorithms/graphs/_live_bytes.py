"""Live bytes by slot: a tree that adds to a range and finds the largest value in O(log slots).

Beside it, for as long as it is asked for, a plain array and the sum of what is above a limit. The
largest value alone says nothing about a change that lowers one of several peaks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from schedsim.kernels.compiled import kernel_for as kernel

from ._profile_record import (
    ADDED,
    EXCESS,
    INT,
    LARGEST,
    LIMIT,
    NUM_SLOTS,
    PROFILE,
    SUMMED,
    TABLE,
    WORK,
    Profile,
)

# Added to an empty slot, so that an empty slot is never the largest; far above any sum of sizes.
EMPTY = 1 << 60

# So many slots of the plain array take about as long as one step of work.
_SLOTS_PER_STEP = 64


@kernel(TABLE, INT)
def _pull(tree: NDArray[np.int64], node: int) -> None:
    """Set the largest value of an inner node from its children."""
    tree[node, LARGEST] = tree[node, ADDED] + max(
        tree[2 * node, LARGEST], tree[2 * node + 1, LARGEST]
    )


@kernel(PROFILE, INT, INT, INT)
def add_range(profile: Profile, low: int, high: int, change: int) -> None:
    """Add `change` to the slots low..high, both ends included."""
    tree = profile.tree
    num_slots = profile.counts[NUM_SLOTS]
    profile.counts[WORK] += 4
    if profile.counts[SUMMED]:
        _add_plainly(profile, low, high, change)
    left, right = low + num_slots - 1, high + num_slots + 1
    while left ^ right ^ 1:
        if not left & 1:
            tree[left ^ 1, LARGEST] += change
            tree[left ^ 1, ADDED] += change
        if right & 1:
            tree[right ^ 1, LARGEST] += change
            tree[right ^ 1, ADDED] += change
        left >>= 1
        right >>= 1
        _pull(tree, left)
        _pull(tree, right)
    while left > 1:
        left >>= 1
        _pull(tree, left)


@kernel(PROFILE, INT, INT, INT)
def _add_plainly(profile: Profile, low: int, high: int, change: int) -> None:
    """`add_range` of the plain array and of the sum; the loop has vector instructions."""
    part, limit, more = profile.live[low : high + 1], profile.counts[LIMIT], 0
    for k in range(part.size):
        over = part[k] - limit
        part[k] += change
        more += max(0, over + change) - max(0, over)
    profile.counts[EXCESS] += more
    profile.counts[WORK] += part.size // _SLOTS_PER_STEP


@kernel(PROFILE, INT)
def sum_excess(profile: Profile, limit: int) -> None:
    """Begin to sum what is above `limit`, over all runs; O(slots)."""
    num_slots, tree, live = profile.counts[NUM_SLOTS], profile.tree, profile.live
    above = np.zeros(num_slots, np.int64)  # what was added to all slots below a node
    total = 0
    for node in range(1, 2 * num_slots):
        added = above[node // 2]
        if node < num_slots:
            above[node] = added + tree[node, ADDED]
        else:
            live[node - num_slots] = added + tree[node, LARGEST]
            total += max(0, live[node - num_slots] - limit)
    profile.counts[LIMIT], profile.counts[EXCESS], profile.counts[SUMMED] = limit, total, 1
    profile.counts[WORK] += num_slots // 2


@kernel(PROFILE, INT)
def excess_over(profile: Profile, limit: int) -> int:
    """The bytes above `limit`: their sum over all runs while it is kept, else those of the peak."""
    if profile.counts[SUMMED]:
        return int(profile.counts[EXCESS])
    return int(max(0, profile.tree[1, LARGEST] - limit))


@kernel(PROFILE, INT)
def next_over(profile: Profile, slot: int) -> int:
    """The first slot from `slot` on, or else from 0 on, that is above the limit of the sum."""
    live, limit = profile.live, profile.counts[LIMIT]
    num_slots = live.size
    for far in range(num_slots):
        at = (slot + far) % num_slots
        if live[at] > limit:
            profile.counts[WORK] += far // _SLOTS_PER_STEP
            return int(at)
    return slot


@kernel(PROFILE, INT, INT)
def max_range(profile: Profile, low: int, high: int) -> int:
    """The largest of the slots low..high; below zero where all of these are empty."""
    if low > high:
        return -EMPTY
    num_slots = profile.counts[NUM_SLOTS]
    profile.counts[WORK] += 2
    left, right = low + num_slots - 1, high + num_slots + 1
    of_left = of_right = -2 * EMPTY
    while left ^ right ^ 1:
        if not left & 1:
            of_left = max(of_left, profile.tree[left ^ 1, LARGEST])
        if right & 1:
            of_right = max(of_right, profile.tree[right ^ 1, LARGEST])
        left >>= 1
        right >>= 1
        of_left += profile.tree[left, ADDED]
        of_right += profile.tree[right, ADDED]
    largest = max(of_left, of_right)
    while left > 1:
        left >>= 1
        largest += profile.tree[left, ADDED]
    return int(largest)


@kernel(PROFILE)
def peak_slot(profile: Profile) -> int:
    """The first slot at which live bytes are largest."""
    num_slots = profile.counts[NUM_SLOTS]
    node = 1
    while node < num_slots:
        node *= 2
        if profile.tree[node + 1, LARGEST] > profile.tree[node, LARGEST]:
            node += 1
    return int(node - num_slots)


@kernel(PROFILE, INT)
def value_at(profile: Profile, slot: int) -> int:
    """The value that the tree holds for `slot`."""
    node = slot + profile.counts[NUM_SLOTS]
    value = profile.tree[node, LARGEST]
    while node > 1:
        node >>= 1
        value += profile.tree[node, ADDED]
    return int(value)

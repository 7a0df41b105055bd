"""Live bytes by slot: a tree that adds to a range and finds the largest value in O(log slots)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from schedsim.kernels.compiled import kernel_for as kernel

from ._profile_record import ADDED, INT, LARGEST, NUM_SLOTS, PROFILE, TABLE, WORK, Profile

# Added to an empty slot, so that an empty slot is never the largest; far above any sum of sizes.
EMPTY = 1 << 60


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

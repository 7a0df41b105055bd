"""The dynamic program over lower sets behind `kusumoto`.

It is compiled by numba on first use, because it looks at all pairs of lower sets; the machine code
is cached on disk.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from schedsim.kernels.cached import njit

NO_BYTES = 2**62
"""Stands in for the bytes of a state that cannot be reached."""


class SetArrays(NamedTuple):
    """A family of lower sets by ascending size, as `LowerSets` describes its arrays."""

    words: Any
    set_bytes: Any
    set_steps: Any
    after_bytes: Any
    edge_start: Any
    edge_op: Any
    op_bytes: Any
    op_steps: Any


class Growth(NamedTuple):
    """All steps from a lower set to a larger one of its family; the steps of a set are adjacent."""

    start: Any
    """(num_sets + 1,) the steps from set i are ``start[i]:start[i + 1]``."""
    to: Any
    """(num_growths,) the larger set."""
    again: Any
    """(num_growths,) time steps recomputed for the ops between the two sets."""
    kept: Any
    """(num_growths,) bytes that the boundary of the larger set adds to what is stored."""
    peak: Any
    """(num_growths,) bytes while the ops between run backward, less what was stored before."""


@njit(cache=True)
def _contains(words: Any, larger: int, smaller: int) -> bool:
    for k in range(words.shape[1]):  # noqa: SIM110
        if words[smaller, k] & ~words[larger, k]:
            return False
    return True


@njit(cache=True)
def list_growth(sets: Any) -> Any:
    """The `Growth` of `sets`, a `SetArrays`; O(#L^2 (words + boundary))."""
    words, num = sets.words, sets.set_bytes.size
    start = np.zeros(num + 1, np.int64)
    for i in range(num):
        start[i + 1] = start[i]
        for j in range(i + 1, num):
            if _contains(words, j, i):
                start[i + 1] += 1
    to = np.empty(start[num], np.int32)
    again = np.empty(start[num], np.int32)
    kept = np.empty(start[num], np.int64)
    peak = np.empty(start[num], np.int64)
    at = 0
    for i in range(num):
        for j in range(i + 1, num):
            if not _contains(words, j, i):
                continue
            time_kept, bytes_kept = 0, 0
            for e in range(sets.edge_start[j], sets.edge_start[j + 1]):
                op = sets.edge_op[e]
                if not (words[i, op >> 6] >> np.uint64(op & 63)) & np.uint64(1):
                    time_kept += sets.op_steps[op]
                    bytes_kept += sets.op_bytes[op]
            to[at] = j
            again[at] = sets.set_steps[j] - sets.set_steps[i] - time_kept
            kept[at] = bytes_kept
            peak[at] = 2 * (sets.set_bytes[j] - sets.set_bytes[i]) + sets.after_bytes[j]
            at += 1
    return Growth(start, to, again, kept, peak)


@njit(cache=True)
def least_limit(growth: Any, low: int, high: int) -> int:
    """The least limit on bytes, low < limit <= high, at which the set of all ops can be reached.

    Storing less is never worse here, so that a search by halving needs one number for each set.
    """
    start, to, kept, peak = growth.start, growth.to, growth.kept, growth.peak
    num = start.size - 1
    stored = np.empty(num, np.int64)
    while high - low > 1:
        limit = (low + high) // 2
        for i in range(num):
            stored[i] = NO_BYTES
        stored[0] = 0
        for i in range(num):
            if stored[i] == NO_BYTES:
                continue
            for e in range(start[i], start[i + 1]):
                if stored[i] + peak[e] <= limit and stored[i] + kept[e] < stored[to[e]]:
                    stored[to[e]] = stored[i] + kept[e]
        if stored[num - 1] < NO_BYTES:
            high = limit
        else:
            low = limit
    return high


@njit(cache=True)
def best_sequence(growth: Any, num_steps: int, limit: int, most_time: bool) -> Any:
    """The sets, last to first, with the least (or the most) time recomputed within `limit` bytes.

    For each set and each time recomputed, the program keeps the least bytes stored. A state that is
    no better than another in both is dropped, so that the most time is the time of the least bytes
    stored. Empty where there is no sequence; O(#L^2 num_steps) at worst.
    """
    start, to, again, kept, peak = growth
    num = start.size - 1
    stored = np.full((num, num_steps + 1), NO_BYTES, np.int64)
    from_set = np.full((num, num_steps + 1), -1, np.int32)
    from_time = np.zeros((num, num_steps + 1), np.int32)
    last_time = np.full(num, -1, np.int64)
    stored[0, 0] = 0
    last_time[0] = 0
    front_time = np.empty(num_steps + 1, np.int64)
    front_bytes = np.empty(num_steps + 1, np.int64)
    found = -1
    for i in range(num):
        size = 0
        for t in range(last_time[i] + 1):
            if stored[i, t] < (front_bytes[size - 1] if size else NO_BYTES):
                front_time[size], front_bytes[size] = t, stored[i, t]
                size += 1
        if i == num - 1 and size:
            found = front_time[size - 1] if most_time else front_time[0]
        for e in range(start[i], start[i + 1]):
            j, room = to[e], limit - peak[e]
            # The least bytes stand last: go back from there until an entry does not fit.
            for k in range(size - 1, -1, -1):
                if front_bytes[k] > room:
                    break
                t, more = front_time[k] + again[e], front_bytes[k] + kept[e]
                if more < stored[j, t]:
                    stored[j, t] = more
                    from_set[j, t] = i
                    from_time[j, t] = front_time[k]
                    last_time[j] = max(last_time[j], t)
    at = num - 1
    sequence = np.empty(num, np.int32)
    made = 0
    while found >= 0:
        sequence[made] = at
        made += 1
        if at == 0:
            break
        at, found = from_set[at, found], from_time[at, found]
    return sequence[:made]

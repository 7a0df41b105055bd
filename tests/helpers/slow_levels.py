"""Least times with levels of memory, by searching all that can be done."""

from __future__ import annotations

import heapq


def least_time(num_steps, forward_s, turn_s, num_slots, write_s, read_s, *, kept_at=None):
    """Dijkstra over (state at hand, states in each level, step to reverse next): no recurrence.

    Any schedule is allowed: states may be dropped at any time, and any level may be used for
    any state. The first state begins at hand and, with `kept_at`, in a slot of that level too.
    """
    levels = range(len(num_slots))
    start = (0, tuple(frozenset([0] if k == kept_at else ()) for k in levels), num_steps - 1)
    times = {start: 0.0}
    queue = [(0.0, 0, start)]
    tie = 1
    while queue:
        time, _, node = heapq.heappop(queue)
        if time > times[node]:
            continue
        hand, stored, last = node
        if last < 0:
            return time
        found = []
        if 0 <= hand < last:
            found.append((forward_s, (hand + 1, stored, last)))
        if hand == last:
            kept = tuple(frozenset(s for s in one if s < last) for one in stored)
            found.append((turn_s, (-1, kept, last - 1)))
        for k in levels:
            for state in stored[k]:
                found.append((read_s[k], (state, stored, last)))
                fewer = (*stored[:k], stored[k] - {state}, *stored[k + 1 :])
                found.append((0.0, (hand, fewer, last)))
            if hand >= 0 and hand not in stored[k] and len(stored[k]) < num_slots[k]:
                more = (*stored[:k], stored[k] | {hand}, *stored[k + 1 :])
                found.append((write_s[k], (hand, more, last)))
        for cost, other in found:
            if time + cost < times.get(other, float("inf")):
                times[other] = time + cost
                heapq.heappush(queue, (time + cost, tie, other))
                tie += 1
    raise AssertionError("no schedule")

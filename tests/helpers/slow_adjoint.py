"""Least times of adjoint schedules, by searching all that the protocol allows."""

from __future__ import annotations

import heapq
import math


def least_time(steps, ram, *, on_disk=False):
    """Dijkstra over every state of the protocol: nothing is said about what stays how long.

    The first restart data begins in working storage or, with `on_disk`, on the disk alone.
    """
    n = steps.num_steps
    x, a, f = steps.restart_bytes, steps.adjoint_bytes, steps.forward_s
    size = {("x", i): int(x[i]) for i in range(n)} | {("a", i): int(a[i]) for i in range(n)}
    # (where the forward stands or -1, adjoint data in work or -1, left to reverse, stored, disk)
    start = (0, -1, n, frozenset(), frozenset())
    if on_disk:
        start = (-1, -1, n, frozenset(), frozenset({("x", 0)}))
    best, queue, count = {start: 0.0}, [(0.0, 0, start)], 0
    while queue:
        time, _, state = heapq.heappop(queue)
        at, work, left, held, disk = state
        if left == 0:
            return time
        if time > best[state]:
            continue
        used = sum(size[one] for one in held)
        found = []
        if work == left - 1:
            found.append((0.0, (at, -1, left - 1, held, disk)))
        if 0 <= at < left:
            go = f[at]
            found.append((go, (at + 1, -1, left, held, disk)))
            found.append((go, (at + 1, at, left, held, disk)))
            for kind in ("x", "a"):
                one = (kind, at)
                if used + size[one] <= ram and one not in held:
                    found.append((go, (at + 1, -1, left, held | {one}, disk)))
                if steps.has_disk and one not in disk:
                    cost = go + size[one] * steps.write_s_per_byte
                    found.append((cost, (at + 1, -1, left, held, disk | {one})))
        for kind, i in held:
            to = (i, -1) if kind == "x" else (-1, i)
            found.append((0.0, (*to, left, held, disk)))
            found.append((0.0, (at, work, left, held - {(kind, i)}, disk)))
        for kind, i in disk:
            to = (i, -1) if kind == "x" else (-1, i)
            cost = size[kind, i] * steps.read_s_per_byte
            found.append((cost, (*to, left, held, disk)))
        for cost, nxt in found:
            if time + cost < best.get(nxt, math.inf):
                best[nxt] = time + cost
                count += 1
                heapq.heappush(queue, (time + cost, count, nxt))
    return math.inf

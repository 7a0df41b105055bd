"""Every persistent way to recompute a stage, one by one."""

from __future__ import annotations

import itertools
from functools import cache


@cache
def replays(lo: int, hi: int) -> tuple[tuple[str, ...], ...]:
    """All persistent ways to run layers lo..hi-1 forward and backward from the input of lo."""
    if lo == hi:
        return ((),)
    found = [
        (f"F{lo}", *rest, f"B{lo}") for rest in (replays(lo + 1, hi) if lo + 1 < hi else ((),))
    ]
    for j in range(lo + 1, hi):
        forward = tuple(f"F{i}" for i in range(lo, j))
        for right, left in itertools.product(replays(j, hi), replays(lo, j)):
            found.append((*forward, *right, *left))
    return tuple(found)


@cache
def plans(lo: int, hi: int) -> tuple[tuple[str, ...], ...]:
    """All backwards of a stage: layers kept, or segments dropped and run again, left to right."""
    if lo == hi:
        return ((),)
    found = [(*rest, f"B{lo}") for rest in plans(lo + 1, hi)]
    for j in range(lo + 1, hi + 1):
        found += [(*rest, *one) for rest in plans(j, hi) for one in replays(lo, j)]
    return tuple(found)

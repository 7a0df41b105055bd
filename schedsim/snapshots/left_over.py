"""Blocks that the program still holds from earlier steps, such as outputs kept in a list."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from .history import Moment
from .reading import Frame, Snapshot
from .roles import GRADIENT, role_of


def left_over_addresses(snapshot: Snapshot, moment: Moment) -> frozenset[int]:
    """The addresses of the blocks at `moment` that a later step of the same program has met.

    A block is left over if, by `moment`, a backward pass has run since its request, the same stack
    has then asked again, and no backward pass frees the block. A stack that asks again marks the
    next forward pass of the same code. Pipelines and accumulated gradients have forward passes
    whose own backward is still to come: a block that is freed later is counted only where it is
    freed outside of a backward pass, and where no block of the same forward pass waits for one. A
    record without the stacks of releases does not tell, and such blocks are not counted.

    Notes
    -----
    O(n log n) for n events.
    """
    made: dict[int, tuple[int, tuple[Frame, ...]]] = {}
    last_request: dict[tuple[Frame, ...], int] = {}
    backward_events: list[int] = []
    in_backward = _BackwardStacks()
    for i, event in enumerate(snapshot.events[: moment.event + 1]):
        if event.action != "alloc":
            continue
        frames = event.frames
        if in_backward(frames):
            backward_events.append(i)
        made[event.address] = i, frames
        last_request[frames] = i
    freed_outside, waiting = set(), []
    for address, frames in _releases(snapshot, moment).items():
        if not in_backward(frames):
            freed_outside.add(address)
        elif address in made:
            waiting.append(made[address][0])
    waiting.sort()
    found = set()
    for block in moment.blocks:
        if block.address not in made or (block.freed and block.address not in freed_outside):
            continue
        at, frames = made[block.address]
        following = bisect_right(backward_events, at)
        if following == len(backward_events) or last_request[frames] < backward_events[following]:
            continue
        begin = backward_events[following - 1] if following else -1
        if block.freed and _any_between(waiting, begin, backward_events[following]):
            continue
        found.add(block.address)
    return frozenset(found)


class _BackwardStacks:
    """Whether a stack is that of a backward pass; known answers are kept."""

    def __init__(self) -> None:
        self._known: dict[tuple[Frame, ...], bool] = {}

    def __call__(self, frames: tuple[Frame, ...]) -> bool:
        if frames not in self._known:
            self._known[frames] = role_of(frames) == GRADIENT
        return self._known[frames]


def _releases(snapshot: Snapshot, moment: Moment) -> dict[int, tuple[Frame, ...]]:
    """For each block in use at `moment`, the stack that releases it, if one does."""
    open_addresses = {block.address for block in moment.blocks if block.freed}
    found: dict[int, tuple[Frame, ...]] = {}
    for event in snapshot.events[moment.event + 1 :]:
        if event.address in open_addresses and event.action.startswith("free"):
            open_addresses.remove(event.address)
            found[event.address] = event.frames
    return found


def _any_between(sorted_numbers: Sequence[int], begin: int, end: int) -> bool:
    at = bisect_right(sorted_numbers, begin)
    return at < bisect_left(sorted_numbers, end)

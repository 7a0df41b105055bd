"""Blocks that the program still holds from earlier steps, such as outputs kept in a list."""

from __future__ import annotations

from bisect import bisect_right

from .history import Moment
from .reading import Frame, Snapshot
from .roles import GRADIENT, role_of


def left_over_addresses(snapshot: Snapshot, moment: Moment) -> frozenset[int]:
    """The addresses of the blocks at `moment` that a later step of the same program has met.

    A block is left over if, by `moment`, a backward pass has run since its request, the same stack
    has then asked again, and nothing in the record frees the block. A stack that asks again marks
    the next forward pass of the same code. Blocks that are freed later are not counted: pipelines
    and accumulated gradients have forward passes whose own backward is still to come.

    Notes
    -----
    O(n log n) for n events.
    """
    made: dict[int, tuple[int, tuple[Frame, ...]]] = {}
    last_request: dict[tuple[Frame, ...], int] = {}
    backward_events: list[int] = []
    is_gradient: dict[tuple[Frame, ...], bool] = {}
    for i, event in enumerate(snapshot.events[: moment.event + 1]):
        if event.action != "alloc":
            continue
        frames = event.frames
        if frames not in is_gradient:
            is_gradient[frames] = role_of(frames) == GRADIENT
        if is_gradient[frames]:
            backward_events.append(i)
        made[event.address] = i, frames
        last_request[frames] = i
    found = set()
    for block in moment.blocks:
        if block.freed or block.address not in made:
            continue
        at, frames = made[block.address]
        following = bisect_right(backward_events, at)
        if following < len(backward_events) and last_request[frames] > backward_events[following]:
            found.add(block.address)
    return frozenset(found)

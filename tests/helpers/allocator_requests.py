"""Requests of memory for the tests of allocators: by hand, at random, and played slowly."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from slow_allocator import Full, SlowCaching

from schedsim.allocators import Requests, play

KIB, MIB = 1 << 10, 1 << 20


def requests(steps, streams=None):
    """Events of a list of sizes (requests, numbered in order) and negative numbers (~item)."""
    sizes = [step for step in steps if step >= 0]
    numbers = iter(range(len(sizes)))
    items = np.array([next(numbers) if step >= 0 else step for step in steps], dtype=np.int64)
    streams = np.zeros(len(sizes), dtype=np.int64) if streams is None else np.array(streams)
    return Requests(
        items=items,
        events=np.arange(items.size),
        item_bytes=np.array(sizes, dtype=np.int64),
        item_stream=streams,
        item_names=tuple(f"t{i}" for i in range(len(sizes))),
        num_events=items.size,
        num_streams=int(streams.max(initial=0)) + 1,
    )


# Sizes near every limit of the rules, and any others.
SIZES = st.one_of(
    st.integers(1, 4 * KIB),
    st.integers(1, 40 * MIB),
    st.builds(
        lambda base, more: max(1, base + more),
        st.sampled_from([512, MIB, 2 * MIB, 10 * MIB, 19 * MIB, 20 * MIB, 22 * MIB, 40 * MIB]),
        st.sampled_from([-513, -512, -1, 0, 1, 512, 513]),
    ),
)


@st.composite
def streams_of_events(draw, max_events=60, num_streams=2):
    """Requests and releases in any order, each release after its request."""
    steps, live, made, streams = [], [], 0, []
    for _ in range(draw(st.integers(1, max_events))):
        if live and draw(st.booleans()) and draw(st.booleans()) is False:
            steps.append(~live.pop(draw(st.integers(0, len(live) - 1))))
        else:
            steps.append(draw(SIZES))
            streams.append(draw(st.integers(0, num_streams - 1)))
            live.append(made)
            made += 1
    return requests(steps, streams)


def play_slowly(stream, sizes, slow):
    """Reserved and allocated bytes after each event, up to the one that fails."""
    reserved, allocated = [], []
    for item in stream.items.tolist():
        try:
            if item < 0:
                slow.release(~item)
            elif isinstance(slow, SlowCaching):
                slow.allocate(item, int(sizes[item]), int(stream.item_stream[item]))
            else:
                slow.allocate(item, int(sizes[item]))
        except Full:
            break
        reserved.append(slow.reserved())
        allocated.append(slow.allocated())
    return reserved, allocated


def reserved_mib(steps, **options):
    return (play(requests(steps), **options).reserved_bytes / MIB).tolist()

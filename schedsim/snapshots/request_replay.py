"""Replay of the requests of a recorded run under other settings of the allocator."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ..allocators import CachingOptions, Requests, play
from ..errors import SchedsimError
from .reading import Snapshot
from .roles import place_of

SETTINGS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:128",
    "max_split_size_mb:512",
    "roundup_power2_divisions:8",
)
"""Settings tried by default, as in ``PYTORCH_ALLOC_CONF``; the first is the plain allocator."""


@dataclass(frozen=True)
class Replayed:
    """A run under one setting.

    Attributes
    ----------
    conf
        The setting, as in ``PYTORCH_ALLOC_CONF``; empty for the plain allocator.
    """

    conf: str
    peak_reserved_bytes: int
    peak_allocated_bytes: int


def recorded_conf(snapshot: Snapshot) -> str:
    """The setting that the run was recorded under; what is not modelled is left out."""
    found = snapshot.settings
    split, divisions = found.get("max_split_size"), found.get("roundup_power2_divisions")
    if isinstance(divisions, dict):  # for each power of two; modelled where all are equal
        values = set(divisions.values())
        divisions = values.pop() if len(values) == 1 else None
    try:
        return str(
            CachingOptions(
                expandable_segments=found.get("expandable_segments") is True,
                max_split_bytes=split if isinstance(split, int) and split > 0 else None,
                roundup_power2_divisions=divisions if isinstance(divisions, int) else 0,
            )
        )
    except SchedsimError:
        return ""


def requests_of(snapshot: Snapshot) -> Requests:
    """The requests of the recorded run, in order.

    Blocks from before the record come first. Their order is not known; in that of their addresses a
    model's blocks share segments as they did. Streams are numbered in order of appearance.
    """
    sizes: list[int] = []
    names: list[str] = []
    streams: list[int] = []
    number_of: dict[int, int] = {}
    items: list[int] = []
    events: list[int] = []

    def ask(size: int, stream: int, name: str) -> int:
        sizes.append(size)
        names.append(name)
        streams.append(number_of.setdefault(stream, len(number_of)))
        return len(sizes) - 1

    made: set[int] = set()
    before: list[tuple[int, int, int]] = []  # size, address, stream
    live: dict[int, int] = {}
    for event in snapshot.events:
        if event.action == "alloc":
            made.add(event.address)
        elif event.action == "free_completed":
            if event.address not in made:
                before.append((event.size_bytes, event.address, event.stream))
            made.discard(event.address)
    for segment in snapshot.segments:
        for block in segment.blocks:
            if block.live and block.address not in made:
                before.append((block.requested_bytes, block.address, segment.stream))
    for size, address, stream in sorted(before, key=lambda row: row[1]):
        live[address] = ask(size, stream, "before the record")
        items.append(live[address])
        events.append(-1)
    for number, event in enumerate(snapshot.events):
        if event.action == "alloc":
            live[event.address] = ask(event.size_bytes, event.stream, place_of(event.frames))
            items.append(live[event.address])
        elif event.action == "free_completed" and event.address in live:
            items.append(~live.pop(event.address))
        else:
            continue
        events.append(number)
    return Requests(
        np.array(items, dtype=np.int64),
        np.array(events, dtype=np.int64),
        np.array(sizes, dtype=np.int64),
        np.array(streams, dtype=np.int64),
        tuple(names),
        len(snapshot.events),
        max(1, len(number_of)),
    )


def replays(snapshot: Snapshot, confs: Iterable[str] = SETTINGS) -> list[Replayed]:
    """The run under each of `confs`, by the model of PyTorch's allocator, without a limit.

    Notes
    -----
    O(n log n) for n requests, for each setting.
    """
    requests = requests_of(snapshot)
    found = []
    for conf in confs:
        options = CachingOptions.parse(conf)
        fields = {name: getattr(options, name) for name in CachingOptions.__dataclass_fields__}
        got = play(requests, "cuda-caching", **fields)
        found.append(Replayed(conf, got.peak_reserved_bytes, got.peak_allocated_bytes))
    return found

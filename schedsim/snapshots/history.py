"""The peak of a recorded run, found backward from the end of the snapshot."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import SchedsimError
from .reading import Frame, Snapshot

ALIGNMENT = 512


def rounded(size_bytes: int) -> int:
    """The bytes of the block for a request, which the allocator rounds up.

    Examples
    --------
    >>> rounded(1), rounded(512), rounded(1000)
    (512, 512, 1024)
    """
    return max(ALIGNMENT, -(-size_bytes // ALIGNMENT) * ALIGNMENT)


@dataclass(frozen=True)
class AllocatedBlock:
    """A block that is in use at some moment.

    Attributes
    ----------
    address, requested_bytes
        Address of the block, and its requested size.
    frames
        The stack of its request.
    known
        Whether its request was recorded, or the allocator still knows its stack.
    freed
        Whether the block is freed later in the record.
    """

    address: int
    requested_bytes: int
    stream: int
    frames: tuple[Frame, ...]
    known: bool
    freed: bool


@dataclass(frozen=True)
class Moment:
    """The state just after an event.

    Attributes
    ----------
    event
        Number of the event; -1 for before the first.
    num_events
        Number of events in the record.
    requested_bytes
        Bytes of all blocks in use.
    reserved_bytes
        Bytes of all segments.
    blocks
        Largest first.
    segments
        Address -> bytes of each piece of memory that the allocator held.
    """

    event: int
    num_events: int
    requested_bytes: int
    reserved_bytes: int
    blocks: tuple[AllocatedBlock, ...]
    segments: dict[int, int]

    @property
    def rounded_bytes(self) -> int:
        """Bytes of all blocks in use, rounded up as the allocator does."""
        return sum(rounded(block.requested_bytes) for block in self.blocks)

    @property
    def unused_bytes(self) -> int:
        """Reserved bytes outside of blocks: cached, or stuck between blocks."""
        return self.reserved_bytes - self.rounded_bytes


_WRONG = "the events of the snapshot do not lead to its segments"
_WRONG_HINT = "record without skip_actions, and dump before the record ends (enabled=None)"

_MAKES_SEGMENT, _ENDS_SEGMENT = ("segment_alloc", "segment_map"), ("segment_free", "segment_unmap")


def peak_of(snapshot: Snapshot, *, of: str = "requested") -> Moment:
    """The moment of most bytes, ``requested`` by the program or ``reserved`` from the device.

    Blocks from before the record are known because they are left at the end, or freed within the
    record.

    Notes
    -----
    O(n log n) for n events.

    Raises
    ------
    SchedsimError
        The snapshot holds no memory of the device, or its events cannot have led to its segments.
    """
    levels = _levels(snapshot)
    # What is requested lies in segments; blocks of private pools, too.
    if any(not 0 <= requested <= reserved for requested, reserved in levels):
        raise SchedsimError(_WRONG, hint=_WRONG_HINT)
    if not snapshot.events and not snapshot.segments:
        raise SchedsimError(
            "the snapshot holds no memory of the device",
            hint="record with torch.cuda.memory._record_memory_history() before the first step",
        )
    column = 0 if of == "requested" else 1
    best = max(range(len(levels)), key=lambda i: levels[i][column])  # the first of equal moments
    return _moment(snapshot, best - 1, levels[best])


def _levels(snapshot: Snapshot) -> list[tuple[int, int]]:
    """Bytes (requested, reserved) before the first event and after each."""
    live = sum(b.requested_bytes for s in snapshot.segments for b in s.blocks if b.live)
    reserved = sum(s.size_bytes for s in snapshot.segments)
    found = [(live, reserved)]
    for event in reversed(snapshot.events):
        if event.action == "alloc":
            live -= event.size_bytes
        elif event.action == "free_completed":
            live += event.size_bytes
        elif event.action in _MAKES_SEGMENT:
            reserved -= event.size_bytes
        elif event.action in _ENDS_SEGMENT:
            reserved += event.size_bytes
        found.append((live, reserved))
    return found[::-1]


def _moment(snapshot: Snapshot, at: int, level: tuple[int, int]) -> Moment:
    """The state after event `at`, from the end backward."""
    live: dict[int, tuple[int, int, tuple[Frame, ...], bool]] = {}
    pieces = _MemoryPieces((segment.address, segment.size_bytes) for segment in snapshot.segments)
    for segment in snapshot.segments:
        for block in segment.blocks:
            if block.live:
                size, stream = block.requested_bytes, segment.stream
                live[block.address] = (size, stream, block.frames, False)
    for event in reversed(snapshot.events[at + 1 :]):
        if event.action == "alloc":
            live.pop(event.address, None)
        elif event.action == "free_completed":
            live[event.address] = (event.size_bytes, event.stream, (), True)
        elif event.action in _MAKES_SEGMENT:
            pieces.cut(event.address, event.size_bytes)
        elif event.action in _ENDS_SEGMENT:
            pieces.add(event.address, event.size_bytes)
    stacks = {
        event.address: event.frames
        for event in snapshot.events[: at + 1]
        if event.action == "alloc"
    }
    blocks = [
        AllocatedBlock(
            address,
            size,
            stream,
            stacks.get(address, frames),
            address in stacks or bool(frames),
            freed,
        )
        for address, (size, stream, frames, freed) in live.items()
    ]
    blocks.sort(key=lambda block: (-block.requested_bytes, block.address))
    segments = dict(zip(pieces.starts, pieces.sizes, strict=True))
    if (sum(block.requested_bytes for block in blocks), sum(pieces.sizes)) != level:
        raise SchedsimError(_WRONG, hint=_WRONG_HINT)
    return Moment(at, len(snapshot.events), level[0], level[1], tuple(blocks), segments)


class _MemoryPieces:
    """Disjoint pieces of memory, by address."""

    def __init__(self, pieces: Iterable[tuple[int, int]]) -> None:
        found = sorted(pieces)
        self.starts = [start for start, _ in found]
        self.sizes = [size for _, size in found]

    def add(self, start: int, size: int) -> None:
        """Add a piece."""
        at = bisect_left(self.starts, start)
        self.starts.insert(at, start)
        self.sizes.insert(at, size)

    def cut(self, start: int, size: int) -> None:
        """Take a range out, which may be part of a piece, or of several that touch."""
        first = max(0, bisect_right(self.starts, start) - 1)
        if first < len(self.starts) and self.starts[first] + self.sizes[first] <= start:
            first += 1
        last = bisect_left(self.starts, start + size)
        left = []
        for low, length in zip(self.starts[first:last], self.sizes[first:last], strict=True):
            left += [(low, start), (start + size, low + length)]
        left = [(low, high - low) for low, high in left if low < high]
        self.starts[first:last] = [low for low, _ in left]
        self.sizes[first:last] = [length for _, length in left]

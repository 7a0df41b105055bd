"""Reading the file of a snapshot without running code that it might contain."""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, NoReturn

from ..errors import SchedsimError

_HOW = "torch.cuda.memory._record_memory_history(), then _dump_snapshot(FILE) of the same module"
_ACTIONS = {
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "oom",
    "snapshot",
    "workspace_snapshot",
    "annotate",
}

_IN_USE = ("active_allocated", "active_awaiting_free", "active_pending_free")
"""States of blocks in use; the last two are released, and wait for another stream's work."""

MOST_BYTES = 2**50
"""Sizes beyond this are of no device."""


@dataclass(frozen=True)
class Frame:
    """A line of a stack."""

    file: str
    line: int
    name: str


@dataclass(frozen=True)
class Event:
    """An action of the allocator.

    Attributes
    ----------
    action
        As in the file: ``alloc``, ``free_completed``, ``segment_alloc``, ...
    size_bytes
        Requested size of a block, or full size of a segment.
    frames
        The stack, innermost first.
    """

    action: str
    address: int
    size_bytes: int
    stream: int
    frames: tuple[Frame, ...]


@dataclass(frozen=True)
class Held:
    """A block of a segment at the time of the snapshot.

    Attributes
    ----------
    size_bytes, requested_bytes
        Size rounded up, and requested size.
    live
        Whether the block is in use.
    """

    address: int
    size_bytes: int
    requested_bytes: int
    live: bool
    frames: tuple[Frame, ...]


@dataclass(frozen=True)
class Segment:
    """A segment of device memory that the allocator held at the time of the snapshot."""

    address: int
    size_bytes: int
    stream: int
    expandable: bool
    blocks: tuple[Held, ...]


@dataclass(frozen=True)
class Snapshot:
    """One device of a snapshot.

    Attributes
    ----------
    events
        In order, from the beginning of the record; events that its buffer dropped are missing.
    settings
        Settings of the allocator, as in the file.
    """

    device: int
    segments: tuple[Segment, ...]
    events: tuple[Event, ...]
    settings: dict[str, Any]


_BROKEN = (
    EOFError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    OverflowError,
    MemoryError,
    RecursionError,
)


class _PlainUnpickler(pickle.Unpickler):
    """Unpickles dicts, lists, tuples, numbers and text; a name of any other object is an error."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("it refers to objects elsewhere")


def is_snapshot_name(name: str) -> bool:
    """Whether `name` has the ending of a snapshot file.

    Examples
    --------
    >>> is_snapshot_name("run/snapshot.pickle"), is_snapshot_name("plan.json")
    (True, False)
    """
    return name.endswith((".pickle", ".pkl"))


def read_snapshot(path: str | PathLike[str], device: int | None = None) -> Snapshot:
    """The snapshot in a file that ``torch.cuda.memory._dump_snapshot`` wrote.

    Parameters
    ----------
    device
        Index of the device; by default the device with the most events.

    Raises
    ------
    SchedsimError
        The file is not a snapshot, or contains more than containers, numbers and text: objects that
        it names are never imported or called.
    """
    from ._opcodes import WRONG, check_opcodes  # compiled

    data = Path(path).read_bytes()
    wrong = WRONG.get(check_opcodes(data))
    if wrong is not None:
        raise SchedsimError(f"{path} is no memory snapshot: {wrong}", hint=_HOW)
    try:
        found = _PlainUnpickler(io.BytesIO(data)).load()
    except pickle.UnpicklingError as error:
        raise SchedsimError(f"{path} is no memory snapshot: {error}", hint=_HOW) from error
    except _BROKEN as error:
        raise SchedsimError(f"{path} is no memory snapshot: it is broken off", hint=_HOW) from error
    try:
        return _SnapshotReader().snapshot(found, device)
    except _BROKEN as error:
        what = " ".join(str(error).split())[:100]
        raise SchedsimError(
            f"{path} is no memory snapshot: {type(error).__name__} {what}", hint=_HOW
        ) from error


class _SnapshotReader:
    """Makes a snapshot of the plain objects of a file, each stack and each frame once."""

    def __init__(self) -> None:
        self._stacks: dict[int, tuple[Frame, ...]] = {}
        self._frames: dict[int, Frame] = {}

    def snapshot(self, found: Any, device: int | None) -> Snapshot:
        """The snapshot of one device."""
        traces, segments = found["device_traces"], found["segments"]
        if device is None:
            with_segments = {_number(s["device"]) for s in segments}
            device = max(
                range(len(traces)),
                key=lambda i: (len(traces[i]), i in with_segments, -i),
                default=0,
            )
        events = traces[device] if device < len(traces) else ()
        return Snapshot(
            device,
            tuple(self._segment(s) for s in segments if _number(s["device"]) == device),
            tuple(map(self._event, events)),
            dict(found.get("allocator_settings") or {}),
        )

    def _segment(self, found: Any) -> Segment:
        start = at = _number(found["address"])
        blocks = []
        for block in found["blocks"]:
            size = _size(block["size"])
            address = _number(block.get("address", at))
            live = block["state"] in _IN_USE
            requested = _size(block.get("requested_size", size))
            stack = self._stack(block.get("frames"))
            blocks.append(Held(address, size, requested if live else 0, live, stack))
            at = address + size
        return Segment(
            start,
            _size(found["total_size"]),
            _number(found.get("stream", 0)),
            bool(found.get("is_expandable", False)),
            tuple(blocks),
        )

    def _event(self, found: Any) -> Event:
        action = found["action"]
        if action not in _ACTIONS:
            raise ValueError(f"unknown action {_text(action)!r}")
        return Event(
            action,
            _number(found.get("addr", found.get("address", 0)) or 0),
            _size(found["size"]),
            _number(found.get("stream", 0)),
            self._stack(found.get("frames")),
        )

    def _stack(self, found: Any) -> tuple[Frame, ...]:
        if not found:
            return ()
        if id(found) not in self._stacks:  # the same list stands at many events
            self._stacks[id(found)] = tuple(map(self._frame, found))
        return self._stacks[id(found)]

    def _frame(self, found: Any) -> Frame:
        if id(found) not in self._frames:
            file, name = _text(found["filename"]), _text(found["name"])
            self._frames[id(found)] = Frame(file, _number(found["line"]), name)
        return self._frames[id(found)]


def _number(found: Any) -> int:
    if type(found) is not int or abs(found) >= 2**64:
        raise ValueError(f"a {type(found).__name__} that is no number of 64 bits")
    return found


def _size(found: Any) -> int:
    if not 0 <= _number(found) <= MOST_BYTES:
        raise ValueError(f"a size of {found} bytes")
    return int(found)


def _text(found: Any) -> str:
    if not isinstance(found, str):
        raise TypeError(f"a {type(found).__name__} that is no text")
    return found

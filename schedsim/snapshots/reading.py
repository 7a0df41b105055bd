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
}


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
    try:
        found = _PlainUnpickler(io.BytesIO(Path(path).read_bytes())).load()
    except pickle.UnpicklingError as error:
        raise SchedsimError(f"{path} is no memory snapshot: {error}", hint=_HOW) from error
    except (EOFError, ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        raise SchedsimError(f"{path} is no memory snapshot: it is broken off", hint=_HOW) from error
    try:
        return _snapshot(found, device)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        what = " ".join(str(error).split())[:100]
        raise SchedsimError(
            f"{path} is no memory snapshot: {type(error).__name__} {what}", hint=_HOW
        ) from error


def _snapshot(found: Any, device: int | None) -> Snapshot:
    traces = found["device_traces"]
    if device is None:
        with_segments = {int(s["device"]) for s in found["segments"]}
        device = max(
            range(len(traces)),
            key=lambda i: (len(traces[i]), i in with_segments, -i),
            default=0,
        )
    segments = tuple(_segment(s) for s in found["segments"] if int(s["device"]) == device)
    events = tuple(_event(e) for e in traces[device]) if device < len(traces) else ()
    return Snapshot(device, segments, events, dict(found.get("allocator_settings") or {}))


def _segment(found: Any) -> Segment:
    blocks, at = [], int(found["address"])
    for block in found["blocks"]:
        size = int(block["size"])
        address = int(block.get("address", at))
        live = block["state"] in ("active_allocated", "active_awaiting_free")
        requested = int(block.get("requested_size", size)) if live else 0
        blocks.append(Held(address, size, requested, live, _frames(block.get("frames"))))
        at = address + size
    return Segment(
        int(found["address"]),
        int(found["total_size"]),
        int(found.get("stream", 0)),
        bool(found.get("is_expandable", False)),
        tuple(blocks),
    )


def _event(found: Any) -> Event:
    action = str(found["action"])
    if action not in _ACTIONS:
        raise ValueError(f"unknown action {action!r}")
    address = int(found.get("addr", found.get("address", 0)) or 0)
    return Event(
        action,
        address,
        int(found["size"]),
        int(found.get("stream", 0)),
        _frames(found.get("frames")),
    )


def _frames(found: Any) -> tuple[Frame, ...]:
    return tuple(Frame(str(f["filename"]), int(f["line"]), str(f["name"])) for f in found or ())

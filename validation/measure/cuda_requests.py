"""The requests to a CUDA device's allocator, one by one, in marked pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from schedsim.errors import SchedsimError

from ..torch_private.cuda_history import requests_in_history, start_history, stop_history

MOST_EVENTS = 1_000_000


@dataclass(frozen=True, slots=True)
class RequestEvent:
    """A request for memory, or a release.

    Attributes
    ----------
    mark
        Name of the piece that the event belongs to; empty before the first.
    asks
        Whether it is a request.
    size_bytes
        Requested bytes, not rounded.
    """

    mark: str
    asks: bool
    address: int
    size_bytes: int


@dataclass
class RequestRecord:
    """A record in progress; `mark` begins a piece of it."""

    device: torch.device
    marks: list[tuple[int, str]] = field(default_factory=list)

    def mark(self, name: str) -> None:
        """Begin a piece called `name`.

        The allocator's own counts separate the pieces, because what runs in the threads of autograd
        carries no mark of this thread.
        """
        self.marks.append((self._num_events(), name))

    def _num_events(self) -> int:
        stats = torch.cuda.memory_stats(self.device)
        return int(stats["allocation.all.allocated"] + stats["allocation.all.freed"])

    def events(self) -> list[RequestEvent]:
        """All events so far.

        Raises
        ------
        SchedsimError
            The record does not contain what the allocator counted.
        """
        torch.cuda.synchronize(self.device)
        number = self.device.index
        found = requests_in_history(torch.cuda.current_device() if number is None else number)
        first = self.marks[0][0]
        if len(found) != self._num_events() - first:
            raise SchedsimError(
                f"the allocator's record has {len(found)} events instead of "
                f"{self._num_events() - first}",
                hint="does another thread use the device?",
            )
        return list(_marked(found, first, self.marks))


@contextmanager
def recording_requests(device: torch.device) -> Iterator[RequestRecord]:
    """Record the requests to the allocator of `device` within the block."""
    torch.cuda.synchronize(device)
    start_history(MOST_EVENTS)
    record = RequestRecord(device)
    record.mark("")
    try:
        yield record
    finally:
        stop_history()


def _marked(
    found: Sequence[dict[str, Any]], first: int, marks: Sequence[tuple[int, str]]
) -> Iterator[RequestEvent]:
    at = 0
    for number, entry in enumerate(found):
        while at + 1 < len(marks) and marks[at + 1][0] - first <= number:
            at += 1
        yield RequestEvent(marks[at][1], entry["action"] == "alloc", entry["addr"], entry["size"])

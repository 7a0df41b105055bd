"""What an allocator makes of a schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..units import format_bytes
from .events import Events


@dataclass(frozen=True)
class Allocation:
    """Memory taken from the device while a schedule runs, once or several times.

    Each series has an entry per run; several steps follow one another. Where the device is too
    small, the series end with the run that fails.

    Attributes
    ----------
    allocator : str
        ``"cuda-caching"``, ``"best-fit"`` or ``"first-fit"``.
    reserved_bytes : (num_runs,) int64
        Taken from the device, the most during each run.
    allocated_bytes : (num_runs,) int64
        In blocks that are in use, the most during each run.
    requested_bytes : (num_runs,) int64
        As asked for, the most during each run: what the simulator counts.
    stuck_bytes : (num_runs,) int64
        Free, at the end of each run, but between blocks in use: they cannot be returned to the
        device, and only a request that fits there can use them.
    peak_reserved_bytes, peak_allocated_bytes : int
    bound_bytes : int
        The most bytes requested at once: no allocator takes less.
    capacity_bytes : int or None
        Size of the device; ``None`` for one without limit.
    fits : bool
        Whether every request was served.
    failed_run, failed_item : int or None, str or None
        The run, and what it asked for, where it was not.
    num_emptied : int
        How often the device was full, and all cached segments were returned to it.
    num_segments : int
        The most segments at once.
    events : Events
    addresses : (events played,) int64
        Where the block of each event begins.
    """

    allocator: str
    options: Mapping[str, Any]
    reserved_bytes: NDArray[np.int64]
    allocated_bytes: NDArray[np.int64]
    requested_bytes: NDArray[np.int64]
    stuck_bytes: NDArray[np.int64]
    peak_reserved_bytes: int
    peak_allocated_bytes: int
    bound_bytes: int
    capacity_bytes: int | None
    fits: bool
    failed_run: int | None
    failed_item: str | None
    num_emptied: int
    num_segments: int
    events: Events
    addresses: NDArray[np.int64]

    @property
    def fragmentation(self) -> NDArray[np.float64]:
        """Share of the reserved bytes that no block in use covers, per run."""
        reserved = np.maximum(self.reserved_bytes, 1)
        return (self.reserved_bytes - self.allocated_bytes) / reserved

    @property
    def extra(self) -> float:
        """Peak of the reserved bytes over the peak of the requested ones, less 1."""
        return self.peak_reserved_bytes / self.bound_bytes - 1.0 if self.bound_bytes else 0.0

    def __str__(self) -> str:
        lines = [
            f"{self.allocator}: {format_bytes(self.peak_reserved_bytes)} reserved "
            f"({self.extra:+.2%} over {format_bytes(self.bound_bytes)} requested)",
            f"  allocated  {format_bytes(self.peak_allocated_bytes)}",
            f"  stuck      {format_bytes(int(self.stuck_bytes.max(initial=0)))} at most",
        ]
        if self.num_emptied:
            lines.append(f"  emptied    {self.num_emptied} times, as the device was full")
        if not self.fits:
            lines.append(f"  fails      at run {self.failed_run}, asking for {self.failed_item}")
        return "\n".join(lines)


def summarize(
    allocator: str,
    options: Mapping[str, Any],
    events: Events,
    played: int,
    series: NDArray[np.int64],
    addresses: NDArray[np.int64],
    num_emptied: int,
    capacity_bytes: int | None,
) -> Allocation:
    """The result per run, from series per event: reserved, allocated, loose, segments."""
    fits = played == events.items.size
    items, runs = events.items[:played], events.runs[:played]
    asked = np.where(items >= 0, 1, -1) * events.item_bytes[np.where(items >= 0, items, ~items)]
    requested = np.cumsum(asked)
    reserved, allocated, loose, segments = series[:, :played]
    failed_run = None if fits else max(0, int(events.runs[played]))
    num_runs = events.num_runs if failed_run is None else failed_run + 1
    stuck = reserved - allocated - loose
    return Allocation(
        allocator=allocator,
        options=options,
        reserved_bytes=_largest_per_run(reserved, runs, num_runs),
        allocated_bytes=_largest_per_run(allocated, runs, num_runs),
        requested_bytes=_largest_per_run(requested, runs, num_runs),
        stuck_bytes=_last_per_run(stuck, runs, num_runs),
        peak_reserved_bytes=int(reserved.max(initial=0)),
        peak_allocated_bytes=int(allocated.max(initial=0)),
        bound_bytes=int(requested.max(initial=0)),
        capacity_bytes=capacity_bytes,
        fits=fits,
        failed_run=failed_run,
        failed_item=None if fits else events.item_names[int(events.items[played])],
        num_emptied=num_emptied,
        num_segments=int(segments.max(initial=0)),
        events=events,
        addresses=addresses[:played],
    )


def _last_per_run(
    values: NDArray[np.int64], runs: NDArray[np.int64], num_runs: int
) -> NDArray[np.int64]:
    """The value after the last event of each run, or before it where a run has none."""
    at = np.searchsorted(runs, np.arange(num_runs), side="right") - 1
    return np.where(at >= 0, values[np.maximum(at, 0)] if values.size else 0, 0).astype(np.int64)


def _largest_per_run(
    values: NDArray[np.int64], runs: NDArray[np.int64], num_runs: int
) -> NDArray[np.int64]:
    """The largest value during each run, the one that it begins with included."""
    largest = _last_per_run(values, runs, num_runs)
    inside = runs >= 0
    np.maximum.at(largest, runs[inside], values[inside])
    before = np.concatenate([[0], _last_per_run(values, runs, num_runs)[:-1]])
    if values.size and not inside[0]:
        before[0] = values[np.flatnonzero(~inside)[-1]]
    return np.maximum(largest, before)

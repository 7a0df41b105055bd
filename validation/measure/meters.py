"""One way to ask for the bytes of a piece of work, whatever counts them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from schedsim.errors import SchedsimError

from .allocator import allocator_record
from .cuda import library_workspace_bytes, requested_bytes, requested_peak, reset_peak
from .storage import StorageTracker


@dataclass(frozen=True, slots=True)
class Reading:
    """Bytes beyond those alive at the start.

    Attributes
    ----------
    peak_bytes
        The most, during the work; at least 0.
    end_bytes
        What is left at its end, the result included.
    result
        What the work returned.
    """

    peak_bytes: int
    end_bytes: int
    result: Any


class Meter(Protocol):
    """Measures the bytes of a piece of work."""

    name: str

    def read(self, function: Callable[[], Any]) -> Reading:
        """Run `function` and say what it took."""
        ...


class StorageMeter:
    """Storages of the tensors that ops return: exact, on any device, blind to kernels' scratch."""

    name = "storage"

    def read(self, function: Callable[[], Any]) -> Reading:
        """Run `function` under a tracker. What existed before must outlive the work."""
        with no_collection(), StorageTracker() as tracker:
            result = function()
        return Reading(tracker.peak.total_bytes, tracker.live_bytes, result)


class AllocatorMeter:
    """The CPU allocator's own record, kernels' scratch included; slow."""

    name = "allocator"

    def read(self, function: Callable[[], Any]) -> Reading:
        """Run `function` under the profiler. What existed before must outlive the work."""
        with no_collection():
            changes, result = allocator_record(function)
        live = peak = 0
        for change in changes:
            live += change
            peak = max(peak, live)
        return Reading(peak, live, result)


class CudaMeter:
    """Requested bytes of the CUDA caching allocator, kernels' workspaces included."""

    name = "cuda"

    def __init__(self, device: torch.device | str = "cuda") -> None:
        self.device = device
        library_workspace_bytes(device)

    def read(self, function: Callable[[], Any]) -> Reading:
        """Run `function` between two waits for the device."""
        with no_collection():
            torch.cuda.synchronize(self.device)
            before = requested_bytes(self.device)
            reset_peak(self.device)
            result = function()
            torch.cuda.synchronize(self.device)
            peak, end = requested_peak(self.device), requested_bytes(self.device)
        return Reading(max(0, peak - before), end - before, result)


METERS = ("storage", "allocator", "cuda")


def get_meter(name: str | None, device: torch.device | str) -> Meter:
    """The meter called `name` for `device`; by default what counts most of what is there.

    Storage on the CPU, where the predictions are exact; requested bytes on CUDA.
    """
    kind = torch.device(device).type
    if name is None:
        name = "cuda" if kind == "cuda" else "storage"
    if name not in METERS:
        raise SchedsimError(f"unknown meter {name!r}", hint=f"one of {', '.join(METERS)}")
    if (name == "cuda") != (kind == "cuda") and name != "storage":
        raise SchedsimError(
            f"meter {name!r} does not count bytes on {kind}",
            hint="storage works everywhere, allocator on cpu, cuda on cuda",
        )
    if name == "cuda":
        return CudaMeter(device)
    return AllocatorMeter() if name == "allocator" else StorageMeter()


@contextmanager
def no_collection() -> Iterator[None]:
    """Collect garbage once, then not at all: cycles that die in between would be noise."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()

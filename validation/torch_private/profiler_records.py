"""Records of the CPU allocator by torch's profiler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._C._profiler import _EventType


def is_profiling() -> bool:
    """Whether a profiler is running, of which there can be one."""
    return bool(torch._C._autograd._profiler_enabled())


def marks(profiler: Any, name: str) -> list[int]:
    """Times in ns of the ranges called `name`, of a stopped profiler."""
    events = profiler.profiler.kineto_results.events()
    return [int(event.start_ns()) for event in events if event.name() == name]


def allocator_events(profiler: Any) -> Iterator[tuple[int, tuple[int, int]]]:
    """(time in ns, (address, change of bytes)) of the CPU allocator, by thread, in no one order."""
    waiting = list(profiler.profiler.kineto_results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        waiting.extend(event.children)
        kind, fields = event.typed
        if kind == _EventType.Allocation and fields.device.type == "cpu":
            yield event.start_time_ns, (fields.ptr, fields.alloc_size)


def forget_library_workspaces() -> None:
    """Free the workspaces that cuBLAS keeps, so that the next product takes them anew."""
    torch._C._cuda_clearCublasWorkspaces()


def forget_results(profiler: Any) -> None:
    """Free what a stopped profiler recorded.

    The collector of cycles would free it at any time, in the midst of the next record as well.
    """
    profiler.profiler.kineto_results = None
    profiler.profiler = None

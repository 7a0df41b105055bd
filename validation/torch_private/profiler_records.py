"""Records of the CPU allocator by torch's profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C._profiler import _EventType
from torch.profiler import ProfilerAction

from ..process_objects import objects_within

_calls: Any = torch.autograd.profiler  # where torch's profilers find what they call
_is_ready = False  # whether another profiler was made ready, as in its warm-up, and has not begun
_is_own = False


def is_profiling() -> bool:
    """Whether a profiler is running, or made ready to run, of which there can be one."""
    return _is_ready or bool(torch._C._autograd._profiler_enabled())


@contextmanager
def beginning_own() -> Iterator[None]:
    """Let a profiler begin in the block that is this package's."""
    global _is_own
    _is_own = True
    try:
        yield
    finally:
        _is_own = False


def watch_other_profilers(before: Callable[[], object]) -> None:
    """Call `before` where a profiler is made ready or begins that is another's, from now on.

    torch looks at nothing there: where one begins under another, the second to end is a
    segmentation fault.
    """
    global _is_ready
    prepare, enable = _calls._prepare_profiler, _calls._enable_profiler

    def prepare_other(*args: Any, **kwargs: Any) -> Any:
        global _is_ready
        if not _is_own:
            before()
            _is_ready = True
        return prepare(*args, **kwargs)

    def enable_other(*args: Any, **kwargs: Any) -> Any:
        global _is_ready
        if not _is_own:
            before()
            _is_ready = False
        return enable(*args, **kwargs)

    _calls._prepare_profiler, _calls._enable_profiler = prepare_other, enable_other
    there = objects_within(torch.profiler.profile)
    _is_ready = any(it.current_action is ProfilerAction.WARMUP for it in there)


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

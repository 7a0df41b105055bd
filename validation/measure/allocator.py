"""Bytes by the CPU allocator's own record: what torch asked of it, kernels' scratch included.

torch.profiler logs every allocation and release of the CPU allocator. What libraries take from the
system by themselves (a matrix library's packing buffers) is not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile, record_function

from .quiet import quiet_stderr

_PHASE = "schedsim phase"


def allocator_record(*functions: Callable[[], Any]) -> list[tuple[list[int], Any]]:
    """Changes of the CPU allocator's bytes, in order, and the result, of each function in turn.

    Releases of blocks that were allocated before are left out, so that what a thread lets go late
    does not count against the next record: let `functions` free nothing that they did not make.

    Examples
    --------
    >>> import torch
    >>> [(changes, _)] = allocator_record(lambda: torch.zeros(1000).sum())
    >>> changes[0], sum(changes)
    (4000, 4)
    """
    results = []
    recorder = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with quiet_stderr():
        recorder.start()
    try:
        for function in functions:
            with record_function(_PHASE):
                pass
            results.append(function())
    finally:
        with quiet_stderr():
            recorder.stop()
    profiler: Any = recorder.profiler
    results_of_torch = profiler.kineto_results
    begins = [event.start_ns() for event in results_of_torch.events() if event.name() == _PHASE]
    # Events arrive by thread: put them in order of time.
    found = sorted(
        [(time_ns, None) for time_ns in begins]
        + list(_cpu_memory(results_of_torch.experimental_event_tree())),
        key=lambda item: item[0],
    )
    phases: list[list[int]] = []
    alive: set[int] = set()
    for _, change in found:
        if change is None:
            phases.append([])
            continue
        address, size = change
        if size > 0:
            alive.add(address)
        elif address not in alive:
            continue  # an earlier record saw it made
        else:
            alive.remove(address)
        if phases:
            phases[-1].append(size)
    return list(zip(phases, results, strict=True))


def _cpu_memory(roots: Any) -> Iterator[tuple[int, tuple[int, int]]]:
    """(time, (address, change of bytes)) of what the CPU allocator did."""
    waiting = list(roots)
    while waiting:
        event = waiting.pop()
        waiting.extend(event.children)
        kind, fields = event.typed
        if kind == _EventType.Allocation and fields.device.type == "cpu":
            yield event.start_time_ns, (fields.ptr, fields.alloc_size)

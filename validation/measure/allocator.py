"""Bytes by the CPU allocator's own record: what torch asked of it, kernels' scratch included.

torch.profiler logs every allocation and release of the CPU allocator. What libraries take from the
system by themselves (a matrix library's packing buffers) is not in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

from .quiet import quiet_stderr

_PHASE = "schedsim phase"


def allocator_record(*functions: Callable[[], Any]) -> list[tuple[list[int], Any]]:
    """Changes of the CPU allocator's bytes, in order, and the result, of each function in turn.

    Releases of blocks that were allocated before are not recorded: let `functions` free nothing
    that they were not the first to make.

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
    # Events arrive by thread: put them in order of time.
    profiler: Any = recorder.profiler
    events = profiler.kineto_results.events()
    found = sorted(
        (
            (event.start_ns(), event.name() == _PHASE, event.nbytes())
            for event in events
            if event.name() == _PHASE or _is_cpu_memory(event)
        ),
        key=lambda item: item[0],
    )
    phases: list[list[int]] = []
    for _, begins, size in found:
        if begins:
            phases.append([])
        elif phases:
            phases[-1].append(size)
    return list(zip(phases, results, strict=True))


def _is_cpu_memory(event: Any) -> bool:
    return bool(event.name() == "[memory]" and event.device_type().name == "CPU")

"""Bytes by the CPU allocator's own record: what torch asked of it, kernels' scratch included.

torch.profiler logs every allocation and release of the CPU allocator. What libraries take from the
system by themselves (a matrix library's packing buffers) is not in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity, profile


def allocator_record(function: Callable[[], Any]) -> tuple[list[int], Any]:
    """Changes of the CPU allocator's bytes while `function` runs, in order, and its result.

    Releases of blocks that were allocated before are not recorded: let `function` free nothing
    that it was not the first to make.

    Examples
    --------
    >>> import torch
    >>> changes, _ = allocator_record(lambda: torch.zeros(1000).sum())
    >>> changes[0], sum(changes)
    (4000, 4)
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorder:
        result = function()
    events = recorder.profiler.kineto_results.events()
    # In order of time: events arrive by thread.
    found = [
        (event.start_ns(), event.nbytes())
        for event in events
        if event.name() == "[memory]" and event.device_type().name == "CPU"
    ]
    return [size for _, size in sorted(found, key=lambda pair: pair[0])], result

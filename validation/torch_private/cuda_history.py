"""The history of CUDA's allocator, while it is recorded."""

from __future__ import annotations

from typing import Any

import torch


def start_history(most_events: int) -> None:
    """Record requests and releases from now on, without stacks; what was recorded is forgotten."""
    memory: Any = torch.cuda.memory
    memory._record_memory_history(
        enabled="all", context=None, max_entries=most_events, clear_history=True
    )


def stop_history() -> None:
    """Record no more."""
    memory: Any = torch.cuda.memory
    memory._record_memory_history(enabled=None)


def requests_in_history(device: int) -> list[dict[str, Any]]:
    """Requests and completed releases in order: ``action``, ``addr`` and ``size`` as asked for."""
    memory: Any = torch.cuda.memory
    trace = memory._snapshot()["device_traces"][device]
    return [event for event in trace if event["action"] in ("alloc", "free_completed")]

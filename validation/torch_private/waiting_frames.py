"""The collective in which a thread waits, read from the functions that wait there."""

from __future__ import annotations

import sys
from typing import Any

import torch.distributed as dist

from .prompt_buffers import PromptCollective, PromptReplicas

_DEEPEST = 24
"""Callers that are looked at, the closest first."""

_ENGINE = "_engine_run_backward"
"""The function of torch that runs autograd's engine, below which there is no Python."""


def collective_that_waits() -> tuple[str, tuple[int, ...]] | None:
    """(name of the collective that the caller waits in, its ranks), or ``None`` if none is seen."""
    frame: Any = sys._getframe(1)
    found: tuple[str, Any] | None = None
    for _ in range(_DEEPEST):
        if frame is None:
            break
        group, caller = frame.f_locals.get("group"), frame.f_locals.get("self")
        name = frame.f_code.co_name
        if isinstance(caller, PromptCollective) and group is not None:
            return caller.words, _ranks(group)
        if found is None and _is_group(group) and name != "<lambda>":
            found = name.lstrip("_"), group
        frame = frame.f_back
    return None if found is None else (found[0], _ranks(found[1]))


def _is_group(group: Any) -> bool:
    return isinstance(group, dist.ProcessGroup | PromptReplicas)


def _ranks(group: Any) -> tuple[int, ...]:
    own = group.original if isinstance(group, PromptReplicas) else group
    return tuple(sorted(dist.get_process_group_ranks(own)))


def is_in_engine(thread_id: int) -> bool:
    """Whether a thread runs a backward pass, and no Python below it."""
    frame = sys._current_frames().get(thread_id)
    return frame is not None and frame.f_code.co_name == _ENGINE

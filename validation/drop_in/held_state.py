"""Bytes resident in a user's loop from before a step to after it, as far as they can be seen."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ..measure import storage_bytes
from ..measure.allocator import close_waiting
from ..ranks.buckets import bucket_bytes_now
from ..resident_state import resident_state
from ..torch_private.graph_tasks import in_backward
from ..torch_private.process_groups import active_wrapper
from .drop_in_options import DropInOptions

_stepped: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()


_within: set[str] = set()  # ranges of the profiler that began under a record which is closed


def _note(optimizer: torch.optim.Optimizer, _arguments: Any, _keywords: Any) -> None:
    _stepped.add(optimizer)
    _within.clear()


def _close(*_: Any) -> None:
    # An optimizer may step in a hook of a gradient: a record that is closed there goes on, as
    # backward runs with a copy of the thread's state.
    if not in_backward() and close_waiting():
        _within.add("optimizer.step")


def may_record() -> bool:
    """Whether a record may start here that goes on after the caller has returned.

    Not in the closure of an optimizer's step whose range began under another record: where the
    range ends, torch would write to the memory of that record, which is freed.
    """
    return not _within


register_optimizer_step_pre_hook(_close)
register_optimizer_step_post_hook(_note)


class HeldState:
    """Bytes of parameters, buffers, gradients and optimizers of the parts seen so far.

    Optimizers are seen at their first step, wherever they are created.
    """

    def __init__(self, options: DropInOptions) -> None:
        self._options = options
        self._tensors: dict[int, weakref.ref[torch.Tensor]] = {}
        self._fixed_bytes = 0
        self._foreseen_bytes = 0
        self._counted: weakref.WeakKeyDictionary[torch.optim.Optimizer, tuple[int, int]]
        self._counted = weakref.WeakKeyDictionary()
        self._wrappers: weakref.WeakSet[Any] = weakref.WeakSet()

    def see(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count `tensors`, parameters and buffers, from now on, and the buckets of a wrapper."""
        wrapper = active_wrapper()
        if wrapper is not None:
            self._wrappers.add(wrapper)
        new = [t for t in tensors if id(t) not in self._tensors or self._tensors[id(t)]() is not t]
        if not new:
            return
        for tensor in new:
            self._tensors[id(tensor)] = weakref.ref(tensor)
        alive = self._alive()
        self._tensors = {id(t): weakref.ref(t) for t in alive}
        self._fixed_bytes = storage_bytes(alive)
        if self._options.optimizer is not None:
            holder = nn.Module()
            for i, tensor in enumerate(alive):
                if isinstance(tensor, nn.Parameter):
                    holder.register_parameter(str(i), tensor)
            state = resident_state(holder, self._options.optimizer)
            self._foreseen_bytes = state.optimizer_bytes

    def _alive(self) -> list[torch.Tensor]:
        return [t for t in (ref() for ref in self._tensors.values()) if t is not None]

    @property
    def total_bytes(self) -> int:
        """All of these bytes, at present."""
        alive = self._alive()
        # Gradients may be views of buckets, which then count once, and whole.
        gradients = [t.grad for t in alive if t.is_leaf and t.grad is not None]
        buckets = sum(map(bucket_bytes_now, self._wrappers))
        return self.lasting_bytes + storage_bytes(gradients) + buckets

    @property
    def lasting_bytes(self) -> int:
        """Bytes of parameters, buffers and optimizers, which no step takes away."""
        optimizers = max(self._foreseen_bytes, self._optimizer_bytes())
        return self._fixed_bytes + optimizers + self._options.extra_bytes

    def _optimizer_bytes(self) -> int:
        total = 0
        for optimizer in list(_stepped):
            known = self._counted.get(optimizer)
            if known is None or known[0] != len(optimizer.state):
                own = any(id(p) in self._tensors for p in optimizer.state)
                found = storage_bytes(dict(optimizer.state)) if own else 0
                known = self._counted[optimizer] = (len(optimizer.state), found)
            total += known[1]
        return total

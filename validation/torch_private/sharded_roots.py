"""The roots of models that FSDP2 shards: which one runs, and a call as the forward of one begins.

A root is the module whose forward sets up gathering for the modules inside of it. What
torch.compile makes of these, or of the root itself, leaves the hooks of FSDP2 to Python, and with
them what is called here.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.distributed import is_available, is_initialized

from schedsim.errors import UnsupportedError

from ..process_objects import objects_within
from .sharded_groups import is_sharded, state_of, states

Begins = Callable[[Any], None]
"""Is called with what the forward is given."""


def running_root() -> nn.Module | None:
    """The root of the sharded model whose forward runs; ``None`` outside of any. O(frames).

    Code of the model has it, or a sharded module inside of it, as `self`.
    """
    frame = inspect.currentframe() if is_available() and is_initialized() else None
    while frame is not None:
        found = frame.f_locals.get("self") if frame.f_code.co_name == "_call_impl" else None
        if isinstance(found, nn.Module) and is_sharded(found):
            return root_of(found)
        frame = frame.f_back
    return None


def root_of(module: nn.Module) -> nn.Module:
    """The root of a sharded `module`, which is itself where its forward would run first."""
    state = state_of(module)
    inside = state._state_ctx.all_states  # empty before the first forward
    root = next((it for it in inside if it._is_root), state)
    found: nn.Module = root._modules[0]
    return found


def model_around(root: nn.Module) -> nn.Module:
    """The outermost module that is being called and has `root` inside; `root` without one."""
    frame, model = inspect.currentframe(), root
    while frame is not None:
        found = frame.f_locals.get("self") if frame.f_code.co_name == "_call_impl" else None
        if isinstance(found, nn.Module) and any(it is root for it in found.modules()):
            model = found
        frame = frame.f_back
    return model


def modules_of_roots() -> set[int]:
    """The ids of all modules inside of sharded ones, and of these. O(objects of the process)."""
    if not (is_available() and is_initialized()):
        return set()
    found = [it for it in objects_within(nn.Module) if is_sharded(it)]
    return {id(module) for root in found for module in root.modules()}


def when_forward_begins(model: nn.Module, begins: Begins) -> None:
    """Call `begins` as a forward of a root in `model` begins, before anything is gathered for it.

    Also where a sharded module inside of it is called by itself, in the place of the root.

    Raises
    ------
    UnsupportedError
        FSDP2 of this torch has another such place.
    """
    for state in dict.fromkeys(states(model)):
        method = getattr(type(state), "_root_pre_forward", None)
        names = list(inspect.signature(method).parameters) if method is not None else []
        if names != ["self", "module", "args", "kwargs"]:
            raise UnsupportedError(
                "FSDP2 of this version of torch does not tell where a forward begins, at which the "
                "ranks of a backend say what they do",
                hint="schedsim.rematerialize(model, inputs, budget, in_place=True) sees each call",
            )
        state._root_pre_forward = _Beginning(state, begins)


class _Beginning:
    """``_root_pre_forward`` of a state, with word of a forward that begins."""

    def __init__(self, state: Any, begins: Begins) -> None:
        self._state, self._begins = weakref.ref(state), begins

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        state = self._state()
        assert state is not None  # it runs
        if state._is_root or state._state_ctx.iter_forward_root is None:
            try:
                self._begins((args, kwargs))
            except BaseException:  # nothing has run: the next forward is to begin as this one
                state._training_state = type(state._training_state).IDLE
                raise
        return type(state)._root_pre_forward(state, module, args, kwargs)

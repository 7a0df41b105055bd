"""Modes in which Python sees every op, and what is seen there."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import CodeType
from typing import Any

import torch
from torch._C._dynamo.eval_frame import reset_code
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._python_dispatch import (
    _disable_current_modes,
    _get_current_dispatch_mode,
    _pop_mode_temporarily,
)

OpOverload = torch._ops.OpOverload


def without_modes() -> AbstractContextManager[Any]:
    """As if no mode were entered: tensors made meanwhile are real, ops run unseen."""
    found: AbstractContextManager[Any] = _disable_current_modes()
    return found


def without_alias_checks() -> AbstractContextManager[Any]:
    """Without AOTAutograd's look at every op, which it takes in the first call of a graph.

    AOTAutograd looks for custom operators whose outputs share memory with their inputs. Its look
    adds some 50 us to every op: more than most ops of a small model take, so that times measured
    meanwhile would be wrong.
    """
    mode = _get_current_dispatch_mode()
    if type(mode).__name__ != "_AnalyzeCustomOpInputOutputMode":
        return nullcontext()
    found: AbstractContextManager[Any] = _pop_mode_temporarily()
    return found


def chosen_branch(op: Any, args: tuple[Any, ...]) -> Callable[[], Any] | None:
    """What `torch.cond` runs on these arguments; ``None`` for any other op.

    A mode that supports higher-order operators is given that op as a whole, and sees the ops of the
    branch where it enters itself again.
    """
    if op is not torch.ops.higher_order.cond:
        return None
    chooses, if_true, if_false, given = args
    branch = if_true if chooses else if_false
    _let_cond_compile()
    return lambda: branch(*given)


def _let_cond_compile() -> None:
    """Have Dynamo forget that it has skipped the code of `torch.cond`, as it does within a mode.

    It would skip that code in all later calls, and fail at what the code calls.
    """
    for const in inspect.unwrap(torch.cond).__code__.co_consts:
        if isinstance(const, CodeType):
            reset_code(const)


def is_functional(tensor: torch.Tensor) -> bool:
    """Whether `tensor` is one of functionalisation's own."""
    return bool(torch._is_functional_tensor(tensor))


def schema_of(target: Any) -> Any:
    """The schema of an op (``name``, ``arguments``, ``returns``, ``is_mutable``), else ``None``."""
    return getattr(target, "_schema", None)


def schema_name(target: Any) -> str:
    """Like ``aten::mul``; empty for what is no op."""
    return str(getattr(schema_of(target), "name", ""))

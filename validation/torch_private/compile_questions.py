"""What Dynamo answers code that asks whether it is compiled (``torch.compiler.is_compiling``)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any

import torch
from torch._dynamo.variables import torch as torch_variables

_ANSWERS = "tracing_state_functions"
_QUESTIONS = ("is_compiling", "is_dynamo_compiling")
_Answer = Callable[[str], bool | None]
_wanted: list[_Answer] = []


@contextmanager
def answering(answer: _Answer) -> Iterator[None]:
    """Give, while Dynamo traces within the block, the answer of `answer` to each module that asks.

    Parameters
    ----------
    answer
        Is given the name of the module whose code asks, and of the one that has called it, where
        the first one only passes the question on; ``None`` leaves the answer to Dynamo.
    """
    _ask_here()
    _wanted.append(answer)
    try:
        yield
    finally:
        _wanted.remove(answer)


@cache
def _ask_here() -> None:
    """Have Dynamo look here for its answers, which are no part of what it guards."""
    own = getattr(torch_variables, _ANSWERS, None)
    if own is None:
        return

    @wraps(own)
    def answers() -> dict[Any, bool | None]:
        found: dict[Any, bool | None] = own()
        tx = sys._getframe(1).f_locals.get("tx") if _wanted else None
        for name in _callers(tx):
            told = _wanted[-1](name)
            if told is not None:
                return found | {getattr(torch.compiler, it): told for it in _QUESTIONS}
        return found

    setattr(torch_variables, _ANSWERS, answers)


def _callers(tx: Any) -> list[str]:
    """The module of the code that is traced, and the one that has called into it."""
    found: list[str] = []
    while tx is not None and len(found) < 2:
        name = str(tx.f_globals.get("__name__", ""))
        if name not in found:
            found.append(name)
        tx = getattr(tx, "parent", None)
    return found

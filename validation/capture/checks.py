"""Ops without output: checks of a factorization, assertions, custom ops that only note something.

No plan may lose them, nor may one run them again: the step raises where the plain one does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

from ..torch_private.kept_checks import is_python_assert, returns_nothing
from .program import Program, refs

aten = torch.ops.aten
_ASSERTS = (aten._assert_async.msg, aten._assert_async.default)
_NO_MESSAGE = "assertion error"
"""What Dynamo says for an ``assert`` without a message."""


_unnoticed: ContextVar[bool] = ContextVar("unnoticed", default=False)


@contextmanager
def unnoticed() -> Iterator[None]:
    """Within it, ops of the user do not run: what they note is of steps of the loop alone."""
    token = _unnoticed.set(True)
    try:
        yield
    finally:
        _unnoticed.reset(token)


class CheckOp:
    """The target of a call of an op without output.

    Parameters
    ----------
    op
        The op, of torch or of the user.
    """

    def __init__(self, op: Callable[..., None]) -> None:
        self.op = op
        self.__name__ = str(getattr(op, "name", lambda: "check")())

    def probe(self, *args: Any, **kwargs: Any) -> None:
        """What a check of torch costs that finds nothing.

        An op of the user runs in steps alone: it may note what it is given. It runs once by every
        schedule, so that no choice among them depends on its time.
        """
        if self.op in _ASSERTS:
            args = (torch.ones_like(args[0]), *args[1:])
        if self._is_own:
            self.op(*args, **kwargs)

    @property
    def _is_own(self) -> bool:
        """Whether it is an op of torch."""
        return getattr(self.op, "namespace", "") == "aten"

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        if self._is_own or not _unnoticed.get():
            self.op(*args, **kwargs)


class AssertOp(CheckOp):
    """An ``assert`` of Python, which Dynamo has made an op: it raises what Python raises."""

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        condition, *message = args
        if not condition:
            raise AssertionError(*[text for text in message if text != _NO_MESSAGE])


def check_of(node: torch.fx.Node) -> CheckOp | None:
    """What a call of `node` runs, if that is an op without output; else ``None``."""
    if node.op != "call_function" or not returns_nothing(node.target):
        return None
    target: Any = node.target
    return (AssertOp if target in _ASSERTS and is_python_assert(node) else CheckOp)(target)


def order_checks(program: Program) -> None:
    """Let each check run behind the draws and checks before it, and in its half of the step.

    A step that ends there then has drawn what the plain step has. O(calls).
    """
    earlier: list[int] = []
    for i, call in enumerate(program.calls):
        if isinstance(call.target, CheckOp):
            behind = [*earlier[-1:], *([program.seed] if call.phase == "backward" else [])]
            given = {program.values[v].call for v in refs((call.args, call.kwargs))}
            call.tokens += tuple(t for t in behind if t not in given)
        if isinstance(call.target, CheckOp) or call.random:
            earlier.append(i)


def checks_before_backward(program: Program) -> list[int]:
    """The checks that end a step before its outputs are handed over."""
    forward = program.calls[: program.seed]
    return [i for i, call in enumerate(forward) if isinstance(call.target, CheckOp)]

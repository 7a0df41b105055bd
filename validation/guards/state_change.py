"""A change of Python state in words, and when two contents of a place are the same to a step."""

from __future__ import annotations

import types
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

GONE = object()
"""The content of a place that does not exist."""
ATOMS = (
    int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.layout,
    torch.memory_format, torch.Size, range, slice, type(...), np.generic, Enum,
)  # fmt: skip
"""Kinds of values that are compared by value."""


class StateChange(NamedTuple):
    """A place whose content has changed."""

    path: str
    before: Any
    now: Any
    owner: Any = None

    def __str__(self) -> str:
        if self.before is GONE:
            return f"{self.path} is new"
        if self.now is GONE:
            return f"{self.path} is gone"
        before, now = shown(self.before), shown(self.now)
        if before == now:
            return f"{self.path} is another {before}"
        return f"{self.path} is {now} instead of {before}"

    @property
    def is_replacement(self) -> bool:
        """Whether a tensor or module left its place, so that the former state will not return."""
        return isinstance(self.before, Tensor | nn.Module)


def shown(value: Any) -> str:
    """`value` in a few words."""
    if isinstance(value, Tensor):
        return f"{type(value).__name__} of shape {tuple(value.shape)}"
    is_short = isinstance(value, tuple) and all(isinstance(one, ATOMS) for one in value)
    if is_short or isinstance(value, ATOMS):
        text = repr(value)
        return text if len(text) <= 40 else text[:37] + "..."
    if isinstance(value, types.FunctionType | types.MethodType):
        return f"function {value.__qualname__}"
    return type(value).__name__


def same(one: Any, two: Any) -> bool:
    """Whether two contents of a place, at two times, are the same to a step.

    Examples
    --------
    >>> same(0.5, 0.5), same(1, 1.0), same([], []), same((1, "a"), (1, "a"))
    (True, False, False, True)
    """
    if one is two:
        return True
    if type(one) is not type(two):
        return False
    if isinstance(one, float) and one != one:
        return bool(two != two)
    if isinstance(one, ATOMS):
        return bool(one == two)
    if isinstance(one, tuple):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, types.MethodType):
        return one.__self__ is two.__self__ and one.__func__ is two.__func__
    return False

"""Functions that a model holds and that hold parts of the model: a twin of it has twins of them.

A forward that is set on an instance (``model.forward = lambda x: old(x) * 2``), a wrapper around
it, or a hook mostly keeps the model in its closure. `copy.deepcopy` takes functions as they are, so
that those of a copy would run the first model.
"""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Iterator
from typing import Any

from torch import nn

from ..guards.state_change import GONE
from ..guards.state_walk import HOOKS
from ..guards.watched_places import held_by

_DEPTH = 8
"""Most wrappers around each other that are looked through."""


def hold_twins(model: nn.Module, twin: nn.Module, memo: dict[int, Any]) -> None:
    """Let `twin`, a copy of `model`, hold functions that reach its own parts. O(modules).

    Parameters
    ----------
    memo
        Of that copy.
    """
    twins, others = _Twins(model, memo), dict(twin.named_modules())
    for path, module in model.named_modules():
        other = others.get(path)
        if other is None:  # a class that copies itself in its own way
            continue
        for name, value in vars(module).items():
            if name in HOOKS:
                table = vars(other).get(name, {})
                table.update((key, twins.of(v)) for key, v in value.items() if twins.reach(v))
            elif not isinstance(value, dict) and twins.reach(value):
                other.__dict__[name] = twins.of(value)


class _Twins:
    """Twins of functions, each made once."""

    def __init__(self, model: nn.Module, memo: dict[int, Any]) -> None:
        self._own = {id(module) for module in model.modules()}
        self._own |= {id(t) for t in [*model.parameters(), *model.buffers()]}
        self._memo = memo
        self._made: dict[int, types.FunctionType] = {}

    def reach(self, value: Any, depth: int = _DEPTH) -> bool:
        """Whether `value` is a function in whose closure a part of the model is found."""
        function = _function_of(value)
        if function is None or not depth:
            return False
        return any(
            id(content) in self._own
            or (isinstance(content, types.MethodType) and id(content.__self__) in self._own)
            or self.reach(content, depth - 1)
            for _, content in _filled(function)
        )

    def of(self, value: Any) -> Any:
        """`value` with the parts of the copy in the place of the model's."""
        if id(value) in self._own:
            return copy.deepcopy(value, self._memo)
        if isinstance(value, functools.partial):
            given = copy.deepcopy((value.args, value.keywords), self._memo)
            return functools.partial(self.of(value.func), *given[0], **given[1])
        if isinstance(value, types.MethodType):
            mine = id(value.__self__) in self._own
            holder = copy.deepcopy(value.__self__, self._memo) if mine else value.__self__
            return types.MethodType(self.of(value.__func__), holder)
        return self._function(value) if self.reach(value) else value

    def _function(self, function: types.FunctionType) -> types.FunctionType:
        if id(function) in self._made:
            return self._made[id(function)]
        cells = {id(cell): types.CellType() for cell, _ in _filled(function)}
        made = types.FunctionType(
            function.__code__,
            function.__globals__,
            function.__name__,
            function.__defaults__,
            tuple(cells.get(id(cell), cell) for cell in function.__closure__ or ()),
        )
        made.__kwdefaults__ = function.__kwdefaults__
        made.__dict__.update(vars(function))
        self._made[id(function)] = made
        for cell, content in _filled(function):
            cells[id(cell)].cell_contents = self.of(content)
        return made


def _function_of(value: Any) -> types.FunctionType | None:
    while isinstance(value, functools.partial):
        value = value.func
    if isinstance(value, types.MethodType):
        value = value.__func__
    return value if isinstance(value, types.FunctionType) else None


def _filled(function: types.FunctionType) -> Iterator[tuple[types.CellType, Any]]:
    cells = ((cell, held_by(cell)) for cell in function.__closure__ or ())
    return ((cell, content) for cell, content in cells if content is not GONE)

"""What Dynamo takes from Python for a graph and never looks at again, watched by the backend."""

from __future__ import annotations

import os
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from schedsim.errors import SchedsimError

from ..guards.reach import CodeRun, Methods, changed_methods
from ..torch_private.dynamo_settings import module_classes, traced_code, traced_scopes
from ..torch_private.global_settings import GlobalSettings
from .tracing import Numbers, changed_numbers, numbers_of


class TracedPython:
    """Methods and variables of the environment in code that Dynamo has just traced, and settings.

    Dynamo's guards cover neither: a graph would go on with a method that its class no longer has,
    or with the attention kernel of another `torch.nn.attention.sdpa_kernel`.

    Parameters
    ----------
    graph_module
        Of whose modules the classes are watched.
    """

    def __init__(self, graph_module: torch.fx.GraphModule) -> None:
        codes, (variables, scope) = set(traced_code()), traced_scopes()
        # The frame that is traced is one module's own, and no node says which.
        own = [kind for held in variables.values() for kind in type(held).__mro__]
        self._methods: Methods = {
            (kind, name): value
            for kind in [*own, *module_classes(graph_module)]
            for name, value in vars(kind).items()
            if isinstance(value, FunctionType) and value.__code__ in codes
        }
        functions = dict.fromkeys(codes & _code_of(scope), scope)
        functions |= {f.__code__: f.__globals__ for f in self._methods.values()}
        names = sorted(CodeRun(functions).reach().variables)
        self._variables = {name: os.environ.get(name) for name in names}
        self._settings = GlobalSettings.now()

    def refuse_changed(self) -> None:
        """Raise where one of them is no longer as it was traced. O(methods).

        Raises
        ------
        SchedsimError
            The graph is of another step; the message names what has changed.
        """
        changed = [
            f"{kind.__qualname__}.{name} was replaced"
            for kind, name, _ in changed_methods(self._methods)
        ]
        changed += [
            f"the environment's {name} is {_shown(os.environ.get(name))} instead of {_shown(value)}"
            for name, value in self._variables.items()
            if os.environ.get(name) != value
        ]
        changed += filter(None, [self._settings.difference(GlobalSettings.now())])
        if changed:
            raise SchedsimError(
                f"the step is not as traced: {changed[0]}, which torch.compile does not look at",
                hint="schedsim.rematerialize(model, inputs, budget, in_place=True) follows it; or "
                "torch._dynamo.reset() after the change",
            )


_first_numbers: WeakKeyDictionary[nn.Module, Numbers] = WeakKeyDictionary()
"""The numbers that the modules of traced frames held at their first trace."""


def counted_since() -> str:
    """What numbers have changed since the first trace of the frame that is traced, in words."""
    found = []
    for module in traced_scopes()[0].values():
        if isinstance(module, nn.Module):
            now = numbers_of(module)
            found.append(changed_numbers(_first_numbers.setdefault(module, now), now))
    return next(filter(None, found), "")


def _code_of(scope: dict[str, Any]) -> set[CodeType]:
    """The code of the functions in `scope`."""
    return {held.__code__ for held in scope.values() if isinstance(held, FunctionType)}


def _shown(value: Any) -> str:
    return "not set" if value is None else repr(value)

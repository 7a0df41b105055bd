"""Where Dynamo meets ``tensor.data = other``, which no graph that returns its changes can do."""

from __future__ import annotations

from functools import cache, wraps
from typing import Any

from torch._dynamo import exc, variables
from torch._dynamo.variables import builtin

_PLACES = (("SetAttrBuiltinVariable", "_call_setattr"), ("BuiltinVariable", "call_setattr"))
"""Where Dynamo follows ``setattr``: from torch 2.13 on, and before."""
_wanted = [False]


def break_at_replaced_data(is_wanted: bool) -> bool:
    """Let Dynamo break its graph at an assignment to ``.data``, or no longer; what held before.

    What is broken there runs as it is: a tensor keeps its object and gets another storage, which
    copies into the old one are not (whoever holds that one would see them). A trace that must be
    one graph goes on.
    """
    before = _wanted[0]
    _wanted[0] = is_wanted and _can_break()
    return before


@cache
def _can_break() -> bool:
    """Have Dynamo ask here at each assignment to an attribute; whether that can be done."""
    found = [
        (kind, method)
        for kind, method in ((getattr(builtin, name, None), method) for name, method in _PLACES)
        if kind is not None and method in vars(kind)
    ]
    if not found:
        return False
    kind, method = found[0]
    own = getattr(kind, method)

    @wraps(own)
    def asking(self: Any, tx: Any, *arguments: Any) -> Any:
        if _wanted[0] and not getattr(tx, "one_graph", False) and _gives_data(*arguments):
            exc.unimplemented(
                gb_type="tensor.data is replaced",
                context="",
                explanation="no graph can do that; write tensor.data.copy_(...), or assign in a "
                "method of its own, which then runs between two graphs",
                hints=["Write in place: tensor.data.copy_(...)."],
            )
        return own(self, tx, *arguments)

    setattr(kind, method, asking)
    return True


def _gives_data(obj: Any = None, name: Any = None, *_: Any) -> bool:
    return (
        isinstance(obj, variables.TensorVariable)
        and name is not None
        and name.is_python_constant()
        and name.as_python_constant() == "data"
    )

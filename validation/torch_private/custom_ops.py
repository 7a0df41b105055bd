"""Ops that users define by `torch.library.custom_op`: the functions that they gave."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch._library.custom_ops import CustomOpDef

_GIVEN = ("_init_fn", "_abstract_fn", "_setup_context_fn", "_backward_fn", "_vmap_fn")


def given_functions(op: object) -> dict[str, Callable[..., Any]] | None:
    """The functions that a user gave for `op`, by name; ``None`` where it is no such op.

    What torch keeps around them is of its own: tables of registrations, and flags that first calls
    set.
    """
    if not isinstance(op, CustomOpDef):
        return None
    found = {name: getattr(op, name, None) for name in _GIVEN}
    for key, function in getattr(op, "_backend_fns", {}).items():
        found[f"_backend_fns[{key!r}]"] = _kernel(function)
    for key, function in getattr(op, "_torch_dispatch_fns", {}).items():
        found[f"_torch_dispatch_fns[{key!r}]"] = function
    return {name: function for name, function in found.items() if callable(function)}


def _kernel(function: Any) -> Any:
    """What lies in the closures that torch made around a kernel."""
    while _is_of_torch(function):
        function = inspect.getclosurevars(function).nonlocals.get("fn")
    return function


def _is_of_torch(function: Any) -> bool:
    """Whether a function is torch's own."""
    return inspect.isfunction(function) and function.__globals__["__name__"].startswith("torch.")

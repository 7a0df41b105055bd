"""Kernels of numba as Python runs them: no compiler, and no index beyond an array unseen."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any


def plain(function: Any) -> Callable[..., Any]:
    """The source of a compiled function, with that of the compiled functions that it calls."""
    code = getattr(function, "py_func", function)
    names = {**code.__globals__}
    for name in code.__code__.co_names:
        if hasattr(names.get(name), "py_func"):
            names[name] = plain(names[name])
    found = FunctionType(code.__code__, names, code.__name__, code.__defaults__, code.__closure__)
    names[code.__name__] = found
    return found

"""Compiling kernels, with a cache on disk where there is a place for one."""

from __future__ import annotations

from typing import Any

import numba

_NO_PLACE = "cannot cache function"


def njit(*arguments: Any, cache: bool = False, **options: Any) -> Any:
    """`numba.njit`; without its cache where neither the package nor the home can be written.

    numba refuses to compile there at all. Kernels then are compiled once a process.
    """
    if arguments and callable(arguments[0]):
        return _compiled(arguments[0], (), cache, options)

    def decorate(function: Any) -> Any:
        return _compiled(function, arguments, cache, options)

    return decorate


def _compiled(function: Any, arguments: tuple[Any, ...], cache: bool, options: Any) -> Any:
    try:
        return numba.njit(*arguments, cache=cache, **options)(function)
    except RuntimeError as error:
        if not cache or _NO_PLACE not in str(error):
            raise
        return numba.njit(*arguments, **options)(function)

"""`numba.njit` for kernels without records, cached on disk where there is a place for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])

_NO_PLACE = "cannot cache function"


def cache_where_possible(dispatcher: Any) -> None:
    """Cache what `dispatcher` compiles, unless neither the package nor the home can be written."""
    try:
        dispatcher.enable_caching()
    except RuntimeError as error:
        if _NO_PLACE not in str(error):
            raise


def njit(*, cache: bool = False, **options: Any) -> Callable[[Function], Function]:
    """`numba.njit`, cached unless neither the package nor the home can be written.

    numba refuses such a kernel altogether; without a cache it is compiled once a process.
    """
    compile_with = cast("Callable[..., Any]", numba.njit)

    def decorate(function: Function) -> Function:
        try:
            return cast("Function", compile_with(cache=cache, **options)(function))
        except RuntimeError as error:
            if not cache or _NO_PLACE not in str(error):
                raise
            return cast("Function", compile_with(**options)(function))

    return decorate

"""The cache of compiled kernels on disk, where there is a place for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])

_NO_PLACE = "cannot cache function"


def cache_where_possible(dispatcher: Any) -> None:
    """Cache what `dispatcher` compiles, but where neither the package nor the home can be written.

    numba refuses such a kernel altogether; without a cache it is compiled once a process.
    """
    try:
        dispatcher.enable_caching()
    except RuntimeError as error:
        if _NO_PLACE not in str(error):
            raise


def njit(*signatures: str, cache: bool = False, **options: Any) -> Callable[[Function], Function]:
    """`numba.njit`, cached where possible."""

    def decorate(function: Function) -> Function:
        try:
            compiled = numba.njit(*signatures, cache=cache, **options)(function)
        except RuntimeError as error:
            if not cache or _NO_PLACE not in str(error):
                raise
            compiled = numba.njit(*signatures, **options)(function)
        return cast("Function", compiled)

    return decorate

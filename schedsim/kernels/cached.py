"""The cache of compiled kernels on disk, where there is a place for one."""

from __future__ import annotations

from typing import Any

import numba

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


def njit(*arguments: Any, cache: bool = False, **options: Any) -> Any:
    """`numba.njit`, cached where possible."""

    def decorate(function: Any) -> Any:
        given = () if function in arguments else arguments
        try:
            return numba.njit(*given, cache=cache, **options)(function)
        except RuntimeError as error:
            if not cache or _NO_PLACE not in str(error):
                raise
            return numba.njit(*given, **options)(function)

    return decorate(arguments[0]) if arguments and callable(arguments[0]) else decorate

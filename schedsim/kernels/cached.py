"""`numba.njit` for kernels without records, cached on disk where there is a place for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba import config

Function = TypeVar("Function", bound=Callable[..., Any])

_NO_PLACE = "cannot cache function"


def cache_where_possible(dispatcher: Any) -> None:
    """Cache what `dispatcher` compiles, unless neither the package nor the home can be written."""
    try:
        dispatcher.enable_caching()
    except RuntimeError as error:
        if _NO_PLACE not in str(error):
            raise
        return
    _skip_broken_files(dispatcher)


def _skip_broken_files(dispatcher: Any) -> None:
    """Compile again where a file of the cache cannot be read, instead of failing at every call.

    Such a file was written by another version, whose records had other names, or was cut short by
    a full disk or a kill. numba reads the index before it looks whether the index is out of date.
    """
    file = dispatcher._cache._cache_file
    load_index, load_data = file._load_index, file._load_data

    def index() -> Any:
        try:
            return load_index()
        except Exception:  # whatever unpickling what another version wrote may raise
            return {}

    def data(name: str) -> Any:
        try:
            return load_data(name)
        except Exception as error:
            raise OSError(f"{name} cannot be read") from error  # numba takes it for missing

    file._load_index, file._load_data = index, data


def njit(*, cache: bool = False, **options: Any) -> Callable[[Function], Function]:
    """`numba.njit`, cached unless neither the package nor the home can be written.

    numba refuses such a kernel altogether; without a cache it is compiled once a process.
    """
    compile_with = cast("Callable[..., Any]", numba.njit)

    def decorate(function: Function) -> Function:
        compiled = compile_with(**options)(function)
        if cache and not config.DISABLE_JIT:
            cache_where_possible(compiled)
        return cast("Function", compiled)

    return decorate

"""The cache of compiled kernels on disk, and when an entry is out of date.

numba drops the cache entry of a kernel when the source file of the kernel changes. The machine code
also contains the kernels that it calls, from other files, and the constants that it reads. Here a
change of any of these makes the entry out of date.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar, cast

import numba
from numba import config
from numba.core.caching import FunctionCache
from numba.core.dispatcher import Dispatcher

from .one_compiler import compiled_by_one

Function = TypeVar("Function", bound=Callable[..., Any])

_NO_PLACE = "cannot cache function"
_CONSTANTS = (bool, int, float, str, tuple)


class KernelCache(FunctionCache):  # type: ignore[misc]
    """numba's cache of one kernel, extended to the kernels and constants that it uses."""

    stamped = False

    def _load_overload(self, sig: Any, target_context: Any) -> Any:
        self._stamp()
        return super()._load_overload(sig, target_context)

    def _save_overload(self, sig: Any, data: Any) -> None:
        self._stamp()
        super()._save_overload(sig, data)

    def _stamp(self) -> None:
        """Set the stamp late, when everything that the kernel names exists."""
        if not self.stamped:
            self.stamped = True
            self._cache_file._source_stamp = stamp_of(self._py_func)


def stamp_of(function: FunctionType) -> tuple[Any, ...]:
    """Everything that the machine code of `function` depends on.

    These are numba's stamps of the source files of all kernels that it calls, directly or not, and
    the constants that these kernels read.
    """
    files, constants = {}, {}
    for one in _made_of(function):
        with contextlib.suppress(RuntimeError):  # a function without a file, typed in by a user
            locator = FunctionCache._impl_class(one).locator
            files[one.__module__] = locator.get_source_stamp()
        for name in one.__code__.co_names:
            value = one.__globals__.get(name)
            if isinstance(value, _CONSTANTS):
                constants[one.__module__, name] = repr(value)
    return (*sorted(files.items()), *sorted(constants.items()))


def _made_of(function: FunctionType) -> Iterator[FunctionType]:
    """`function` and the kernels that it calls, each once."""
    seen, left = set(), [function]
    while left:
        one = left.pop()
        if one in seen:
            continue
        seen.add(one)
        yield one
        named = [one.__globals__.get(name) for name in one.__code__.co_names]
        closed = [cell.cell_contents for cell in one.__closure__ or ()]
        left += [it.py_func for it in (*named, *closed) if isinstance(it, Dispatcher)]


def cache_where_possible(dispatcher: Any) -> None:
    """Cache the code of `dispatcher`, unless neither the package nor the home is writable."""
    try:
        dispatcher._cache = KernelCache(dispatcher.py_func)
    except RuntimeError as error:
        if _NO_PLACE not in str(error):
            raise
        return
    _skip_broken_files(dispatcher)


def compiled_by_one_of_all(dispatcher: Any) -> contextlib.AbstractContextManager[None]:
    """Let one process compile a cached kernel while others wait, to load what it has made."""
    cache = dispatcher._cache
    if not isinstance(cache, KernelCache):
        return contextlib.nullcontext()
    name = cache._impl.filename_base
    return compiled_by_one(Path(cache.cache_path, f"{name}.lock"))


def _skip_broken_files(dispatcher: Any) -> None:
    """Compile again if a cache file cannot be read, instead of failing at every call.

    Another version, whose records had other names, wrote such a file, or a full disk or a kill cut
    the file short. numba reads the index before it checks whether the index is out of date.
    """
    file = dispatcher._cache._cache_file
    load_index, load_data = file._load_index, file._load_data

    def index() -> Any:
        try:
            return load_index()
        except Exception:  # unpickling a file of another version may raise anything
            return {}

    def data(name: str) -> Any:
        try:
            return load_data(name)
        except Exception as error:
            raise OSError(f"{name} cannot be read") from error  # numba treats the file as missing

    file._load_index, file._load_data = index, data


def njit(*, cache: bool = False, **options: Any) -> Callable[[Function], Function]:
    """`numba.njit`, cached unless neither the package nor the home is writable.

    numba refuses to compile a cached kernel then; without the cache, each process compiles it once.
    """
    compile_with = cast("Callable[..., Any]", numba.njit)

    def decorate(function: Function) -> Function:
        compiled = compile_with(**options)(function)
        if cache and not config.DISABLE_JIT:
            cache_where_possible(compiled)
        return cast("Function", compiled)

    return decorate

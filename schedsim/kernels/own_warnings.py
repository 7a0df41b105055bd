"""numba types kernels without touching the warning filters of the process.

`warnings.catch_warnings` puts back, at its end, the filters and the recorder that it found at its
beginning: those of all threads. A kernel that a thread compiles beside a user's code would so undo
what the user has set meanwhile.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numba.core.errors


class _Unrecorded:
    """The module ``warnings`` for numba, of which nothing is recorded and no filter is set."""

    def __getattr__(self, name: str) -> Any:
        return getattr(warnings, name)

    def simplefilter(self, *_: Any, **__: Any) -> None:
        """Leave the filters as they are."""

    @contextmanager
    def catch_warnings(self, **_: Any) -> Iterator[list[Any]]:
        """Record nothing: a warning of numba is emitted where it comes."""
        yield []


@contextmanager
def filters_left_alone() -> Iterator[None]:
    """Have numba leave the warning filters alone; the caller holds numba's compiler lock."""
    before = numba.core.errors.warnings
    numba.core.errors.warnings = _Unrecorded()
    try:
        yield
    finally:
        numba.core.errors.warnings = before

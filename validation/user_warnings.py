"""Warnings that name the line of the user's code that was running, and none of a library's."""

from __future__ import annotations

import sys
import warnings

_PASSED_OVER = frozenset({"schedsim", "torch", "contextlib", "functools", "threading", ""})
"""First names of modules; code that PyTorch generates has none."""


def warn_user(line: str, category: type[Warning] = UserWarning) -> None:
    """Warn of `line` at the innermost running line that is neither ours nor PyTorch's.

    The engine of autograd runs backwards of a GPU in threads in which no line of the user runs:
    there the outermost line is named. O(frames).

    Examples
    --------
    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as told:
    ...     warn_user("the step is planned anew")
    >>> told[0].category.__name__, str(told[0].message)
    ('UserWarning', 'the step is planned anew')
    """
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _root(frame.f_globals) in _PASSED_OVER:
        frame, level = frame.f_back, level + 1
    warnings.warn(line, category, stacklevel=level)


def _root(names: dict[str, object]) -> str:
    return str(names.get("__name__", "")).partition(".")[0]

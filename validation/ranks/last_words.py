"""What a rank says before its process ends by an exception that its loop has not caught.

It also says what another rank has said, where that one is what this rank lost: ranks that wait in
averages of DistributedDataParallel get gloo's error of a lost connection, and no word of ours.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from multiprocessing import util
from typing import Any

Tell = Callable[[str], str | None]

_told: list[Tell] = []


def tell_before_the_end(tell: Tell) -> None:
    """Call ``tell(line)`` when an exception ends this process, that of a spawned one included.

    What it returns is written below the exception.
    """
    if not _told:
        before = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
            heard = speak(error)
            before(kind, error, traceback)
            _write(heard)

        sys.excepthook = hook
        # A process of multiprocessing calls no hook; its finalizers run while the error passes.
        util.Finalize(None, lambda: _write(speak(sys.exc_info()[1])), exitpriority=100)
    _told.append(tell)


def forget(tell: Tell) -> None:
    """Call `tell` no more."""
    if tell in _told:
        _told.remove(tell)


def speak(error: BaseException | None) -> list[str]:
    """Tell others of `error`, if it is one; what they have said that explains it."""
    line = words_of(error)
    heard = [] if line is None else [tell(line) for tell in _told]
    return [one for one in heard if one is not None]


def _write(lines: list[str]) -> None:
    for line in lines:
        sys.stderr.write(f"error: {line}\nhint: this rank lost its connection to it\n")


def words_of(error: BaseException | None) -> str | None:
    """`error` in words; ``None`` where a process that ends with it ends well."""
    if isinstance(error, SystemExit):
        if error.code in (None, 0):
            return None
        if error.__context__ is not None:  # how torch.multiprocessing ends a process that failed
            return words_of(error.__context__)
        return f"ended with status {error.code}"
    return None if error is None else f"ended by {type(error).__name__}: {error}"

"""Errors as other ranks hear of them, and the errors that these ranks raise in turn."""

from __future__ import annotations

import copy
import pickle
from typing import Any

from schedsim.errors import SchedsimError


class RankError(RuntimeError):
    """Another rank failed, or was lost; the message says which, and with what."""


class RankStoppedError(Exception):
    """Another rank stopped with an error of its own kind; the message says which, and with what."""


class Interrupted(RuntimeError):
    """A wait for a collective was given up, because another rank has failed."""


def told(error: BaseException) -> bytes:
    """`error` as bytes for other ranks: errors of this package whole, others by their text."""
    if isinstance(error, SchedsimError):
        try:
            return pickle.dumps(("ours", error))
        except Exception:  # an error may carry any object, which may not be picklable
            pass
    kind = "runtime" if isinstance(error, RuntimeError) else "other"
    return pickle.dumps((kind, f"{type(error).__name__}: {error}"))


def heard(text: bytes, rank: int, what: str) -> Exception:
    """The error that other ranks raise where `rank` failed in `what`.

    The handlers that catch the first error catch this one, so that all ranks continue alike.
    """
    kind, content = pickle.loads(text)
    if kind == "ours":
        error: SchedsimError = copy.copy(content)
        error.message = f"rank {rank}: {error.message}"
        error.args = (error.message, *error.args[1:])
        return error
    message = f"rank {rank} failed to {what}: {content}"
    return RankError(message) if kind == "runtime" else RankStoppedError(message)


def agree_on(error: Any) -> Any:
    """`error`, marked as an error that all ranks raise: no rank need be told again."""
    error.raised_on_all_ranks = True
    return error


def is_agreed(error: BaseException) -> bool:
    """Whether all ranks raise this error already."""
    return bool(getattr(error, "raised_on_all_ranks", False))


def mark_elsewhere(error: Any) -> Any:
    """`error`, marked as that of a rank which failed outside of what this rank is doing."""
    error.failed_elsewhere = True
    return error


def is_elsewhere(error: BaseException) -> bool:
    """Whether the rank that failed is not where this one is: it takes no part in a second try."""
    return bool(getattr(error, "failed_elsewhere", False))

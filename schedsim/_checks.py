"""Checks of single values, shared by the model classes and the file readers."""

from __future__ import annotations

import math

from .errors import InvalidWorkloadError

# 2^53 - 1: the largest integer that JSON readers agree on; 9 PB is beyond any device.
MAX_BYTES = 2**53 - 1


def shown(value: object) -> str:
    """`value` as text, cut to a length that fits an error line."""
    try:
        text = repr(value)
    except ValueError:  # an integer too long to print
        return "a number too long to print"
    return text if len(text) <= 60 else text[:57] + "..."


def check_bytes(value: object, path: str) -> None:
    """Raise unless `value` is an ``int`` in ``0..2**53 - 1``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidWorkloadError(
            f"{shown(value)} is not a whole number of bytes",
            path=path,
            hint="sizes in files and in the Python API are integers, in bytes",
        )
    if value < 0:
        raise InvalidWorkloadError(f"{shown(value)} is negative", path=path)
    if value > MAX_BYTES:
        raise InvalidWorkloadError(f"{shown(value)} is more than {MAX_BYTES} bytes", path=path)


def check_seconds(value: object, path: str) -> None:
    """Raise unless `value` is a finite number of seconds, zero or more, below 1e15."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidWorkloadError(f"{shown(value)} is not a number of seconds", path=path)
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidWorkloadError(f"{value} is not a finite time", path=path)
    if value < 0:
        raise InvalidWorkloadError(f"{shown(value)} is negative", path=path)
    if value > 1e15:
        raise InvalidWorkloadError(f"{shown(value)} is more than 1e15 seconds", path=path)


def check_name(value: object, path: str) -> None:
    """Raise unless `value` is a non-empty text without control characters."""
    if not isinstance(value, str):
        raise InvalidWorkloadError(f"{shown(value)} is not a text", path=path)
    if not value:
        raise InvalidWorkloadError("the name is empty", path=path)
    if not value.isprintable():
        raise InvalidWorkloadError(f"{shown(value)} has control characters", path=path)

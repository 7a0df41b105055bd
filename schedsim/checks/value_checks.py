"""Checks of single values, shared by the model classes and the file readers."""

from __future__ import annotations

import math

from ..errors import InvalidWorkloadError

# 2^53 - 1: the largest integer that JSON readers agree on; 9 PB is beyond any device. The sum of
# all sizes of a workload stays below the limit too, and so does every peak.
MAX_BYTES = 2**53 - 1

# Limit for one run. The sum over any schedule that fits in memory stays finite.
MAX_SECONDS = 1e15


def shown(value: object) -> str:
    """`value` as text, cut to a length that fits an error line."""
    try:
        text = repr(value)
    except ValueError:  # an integer too long to print
        return "a number too long to print"
    return text if len(text) <= 60 else text[:57] + "..."


def shown_key(key: str) -> str:
    """`key` as part of a field's path; quoted and cut if it is long or not printable."""
    return key if len(key) <= 60 and key.isprintable() else shown(key)


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


def check_own_bytes(value: object, written_bytes: int, path: str) -> None:
    """Raise unless `value` is a workspace in bytes of an op that writes `written_bytes`.

    A workspace is negative where the op frees part of what it reads before it writes. What it asks
    for by itself, workspace and outputs, is not.
    """
    if isinstance(value, int) and not isinstance(value, bool) and -written_bytes <= value < 0:
        return
    check_bytes(value, path)


def check_total(total: int, path: str) -> None:
    """Raise where the sizes of a whole workload, added up, are not a size themselves."""
    if total > MAX_BYTES:
        raise InvalidWorkloadError(
            f"all sizes together, {total}, are more than {MAX_BYTES} bytes",
            path=path,
            hint="are some of them in bits, or measured in another unit?",
        )


def check_seconds(value: object, path: str, *, most: float = MAX_SECONDS) -> None:
    """Raise unless `value` is a finite number of seconds, zero or more, up to `most`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidWorkloadError(f"{shown(value)} is not a number of seconds", path=path)
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidWorkloadError(f"{value} is not a finite time", path=path)
    if value < 0:
        raise InvalidWorkloadError(f"{shown(value)} is negative", path=path)
    if value > most:
        raise InvalidWorkloadError(f"{shown(value)} is more than {most:g} seconds", path=path)


def check_name(value: object, path: str) -> None:
    """Raise unless `value` is a non-empty text without control characters."""
    if not isinstance(value, str):
        raise InvalidWorkloadError(f"{shown(value)} is not a text", path=path)
    if not value:
        raise InvalidWorkloadError("the name is empty", path=path)
    if not value.isprintable():
        raise InvalidWorkloadError(
            f"{shown(value)} has control characters", path=path, hint="names are one line of text"
        )

"""Sizes and times as people write and read them. GB is 10^9 bytes, GiB is 2^30."""

from __future__ import annotations

import re
from fractions import Fraction

from .checks.value_checks import shown
from .errors import SchedsimError

_DECIMAL = {"kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15}
_BINARY = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}
_UNITS = {"": 1, "B": 1, **_DECIMAL, **_BINARY}
_LETTERS = {name[:-1].upper() for name in (*_DECIMAL, *_BINARY)}
_SIZE = re.compile(r"\s*([+-]?\d+(?:_\d+)*(?:\.\d+)?(?:[eE][+-]?\d{1,3})?)\s*([A-Za-z]*)\s*")


class UnitError(SchedsimError, ValueError):
    """A size or a time cannot be read."""


def parse_bytes(text: str) -> int:
    """The number of bytes that `text` stands for: ``"8GB"``, ``"7.5 GiB"`` or plain bytes.

    Raises
    ------
    UnitError
        `text` has no number, an unknown or ambiguous unit (``8G``), a negative size, or a fraction
        of a byte.

    Examples
    --------
    >>> parse_bytes("8GB"), parse_bytes("8 GiB"), parse_bytes("512")
    (8000000000, 8589934592, 512)
    """
    match = _SIZE.fullmatch(text) if len(text) <= 100 else None
    if match is None:
        raise UnitError(f"{shown(text)} is not a size", hint="write it like 8GB, 7.5GiB or 512MiB")
    number, unit = match.groups()
    if unit[:-1].upper() in _LETTERS and unit.endswith("b") and unit != unit.lower():
        whole = f"{unit[0].upper()}{unit[1:-1].lower()}B"
        raise UnitError(
            f"{text!r} is ambiguous: b is for bits",
            hint=f"write {number}{whole} for bytes; {number} {unit} of bits are an eighth of that",
        )
    by_lower = {name.lower(): name for name in _UNITS}
    if unit.upper() in {"K", "M", "G", "T", "P"}:
        letter = unit.upper()
        raise UnitError(
            f"{text!r} is ambiguous",
            hint=f"write {number}{letter}B (powers of 1000) or {number}{letter}iB (powers of 1024)",
        )
    if unit.lower() not in by_lower or unit == "b":
        raise UnitError(f"{text!r} has an unknown unit {unit!r}", hint="use B, MB, GB, MiB or GiB")
    size = Fraction(number.replace("_", "")) * _UNITS[by_lower[unit.lower()]]
    if size < 0:
        raise UnitError(f"{text!r} is negative", hint="a size is zero or more")
    if size >= 2**53:
        raise UnitError(f"{text!r} is more than 9 PB", hint="check the unit")
    if size.denominator != 1:
        if unit in ("", "B"):
            raise UnitError(f"{text!r} is a fraction of a byte", hint="give whole bytes")
        return int(size)  # rounds down, which is the safe side for a budget
    return int(size)


def format_bytes(size: int) -> str:
    """`size` for people, in both systems: ``"8.00 GB (7.45 GiB)"``.

    Examples
    --------
    >>> format_bytes(8_000_000_000), format_bytes(12)
    ('8.00 GB (7.45 GiB)', '12 B')
    """
    if abs(size) < 1000:
        return f"{size} B"
    return f"{_scaled(size, _DECIMAL)} ({_scaled(size, _BINARY)})"


def format_bytes_short(size: int) -> str:
    """`size` in decimal units alone, for tables: ``"8.00 GB"``."""
    return f"{size} B" if abs(size) < 1000 else _scaled(size, _DECIMAL)


def format_bytes_change(size: int) -> str:
    """A difference of bytes, signed: ``"-1.47 GB"``."""
    return f"{'-' if size < 0 else '+'}{format_bytes_short(abs(size))}"


def _scaled(size: int, units: dict[str, int]) -> str:
    best, value = "B", float(size)
    for name, factor in units.items():
        if name != "KB" and (best == "B" or abs(size) >= factor * 0.9995):
            best, value = name, size / factor
    digits = 2 if abs(value) < 100 else 1
    return f"{value:.{digits}f} {best}"


def format_seconds(seconds: float) -> str:
    """`seconds` for people: ``"1.5 s"``, ``"20 ms"``, ``"3 us"``.

    Examples
    --------
    >>> format_seconds(0.02), format_seconds(0)
    ('20 ms', '0 s')
    """
    if seconds == 0:
        return "0 s"
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)):
        if abs(seconds) >= factor * 0.9995 or unit == "ns":
            value = seconds / factor
            return f"{value:.3g} {unit}" if abs(value) < 999.5 else f"{value:,.0f} {unit}"
    raise AssertionError("unreachable")


def format_seconds_change(seconds: float) -> str:
    """A difference of seconds, signed: ``"+20 ms"``."""
    return f"{'-' if seconds < 0 else '+'}{format_seconds(abs(seconds))}"

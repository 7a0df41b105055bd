"""Sizes, budgets, gaps and times, as they are typed."""

from __future__ import annotations

import math
from decimal import Decimal, InvalidOperation
from typing import Any

import click

from ...errors import SchedsimError
from ...plans.budgets import check_budget, is_share, parse_share
from ...units import UnitError, parse_bytes

_UNITS_S = {"ns": Decimal("1e-9"), "us": Decimal("1e-6"), "ms": Decimal("1e-3"), "s": Decimal(1)}


class SizeType(click.ParamType):  # type: ignore[type-arg]
    """A size in bytes, or one of the given words."""

    name = "size"

    def __init__(self, *words: str) -> None:
        self.words = words

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        """Bytes, or the word itself."""
        if isinstance(value, int) or value in self.words:
            return value  # type: ignore[no-any-return]
        try:
            return parse_bytes(value)
        except UnitError as error:
            where = f"{param.opts[0]} " if param else ""
            raise UnitError(f"{where}{error.message}", hint=error.hint) from None


class BudgetType(SizeType):
    """A size in bytes, or a share of the store-all peak, kept as text: ``"60%"``."""

    name = "budget"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        """Bytes, or the share, checked."""
        if not isinstance(value, str) or not is_share(value):
            return super().convert(value, param, ctx)
        try:
            return check_budget(value.strip())
        except UnitError as error:
            where = f"{param.opts[0]} " if param else ""
            raise UnitError(f"{where}{error.message}", hint=error.hint) from None


class GapType(click.ParamType):  # type: ignore[type-arg]
    """A gap to a bound: ``0.01``, or ``1%``."""

    name = "gap"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The share of the bound, at most 1."""
        text, where = str(value), param.opts[0] if param else "gap"
        if is_share(text):
            return float(parse_share(text))
        try:
            gap = float(text)
        except ValueError:
            gap = math.nan
        if gap > 1 and math.isfinite(gap):
            raise SchedsimError(
                f"{where} {text} is {gap:.0%} of the bound", hint=f"{where} {text}% is {text} %"
            )
        if not 0 <= gap <= 1:
            raise SchedsimError(
                f"{where} {text} is not at least 0", hint="a gap is a number like 0.01, or 1%"
            )
        return gap


class TimeType(click.ParamType):  # type: ignore[type-arg]
    """A time in seconds, written with its unit."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Seconds."""
        if isinstance(value, float):
            return value
        where = f"{param.opts[0]} " if param else ""
        for unit, factor in _UNITS_S.items():
            number = value.removesuffix(unit)
            if number == value or (unit == "s" and number[-1:] in "num"):
                continue
            try:
                seconds = float(Decimal(number) * factor)  # a single rounding: 10us is exactly 1e-5
            except (InvalidOperation, OverflowError):
                break
            if seconds >= 0 and math.isfinite(seconds):
                return seconds
            break
        raise SchedsimError(
            f"{where}{value!r} is not a time", hint="a number and ns, us, ms or s: 10us"
        )


def read_count(text: str) -> int | None:
    """`text` as a number of 1 or more in plain digits; ``None`` for anything else.

    Examples
    --------
    >>> read_count("12"), read_count("0"), read_count("²"), read_count("9" * 5000)
    (12, None, None, None)
    """
    plain = text.isascii() and text.isdecimal() and len(text) <= 18
    return int(text) or None if plain else None


def number_text(value: float) -> str:
    """`value` as the shortest argument that is read back exactly."""
    short = f"{value:g}"
    if isinstance(value, int):
        return str(value)
    return short if float(short) == value else repr(value)


def time_text(seconds: float) -> str:
    """`seconds` as an argument that is read back exactly: ``10us``, else in seconds."""
    micro = f"{seconds * 1e6:g}"
    exact = float(Decimal(micro) * _UNITS_S["us"]) == seconds
    return f"{micro}us" if exact else f"{seconds!r}s"


def size_text(size: int) -> str:
    """`size` as an argument that is read back exactly: ``8GB``, ``24GiB``, else plain bytes."""
    for exponent, name in ((3, "GB"), (2, "MB")):
        for base, unit in ((1000, name), (1024, name.replace("B", "iB"))):
            if size and size % base**exponent == 0:
                return f"{size // base**exponent}{unit}"
    return str(size)

"""Limits on memory: ``--mem`` and ``--capacity``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from ...errors import SchedsimError
from ...units import UnitError, parse_bytes
from .typed_sizes import BudgetType


def budget_option(*, required: bool) -> Callable[..., Any]:
    """``--mem SIZE``."""
    return click.option(
        "--mem",
        "budget",
        type=BudgetType(),
        required=required,
        metavar="SIZE|SHARE",
        help="Budget for the simulated peak, model state included: 8GB, 7.5GiB, or 60% of the "
        "store-all peak (nothing recomputed).",
    )


def capacity_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--capacity POOL=SIZE``, which is repeated for each pool."""

    def read(
        ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
    ) -> dict[str, int] | None:
        found: dict[str, int] = {}
        for text in value:
            pool, equals, size = text.partition("=")
            if not equals or not pool:
                raise SchedsimError(
                    f"--capacity {text}: no pool and size", hint="write it like host=64GiB"
                )
            if pool in found:
                raise SchedsimError(f"--capacity {pool} is given twice", hint="give it once")
            try:
                found[pool] = parse_bytes(size)
            except UnitError as error:
                raise UnitError(f"--capacity {text}: {error.message}", hint=error.hint) from None
        return found or None

    return click.option(
        "--capacity",
        "capacities",
        multiple=True,
        metavar="POOL=SIZE",
        callback=read,
        help="Size of a memory pool; runs wait until their memory fits: device=24GiB, host=64GiB.",
    )(function)

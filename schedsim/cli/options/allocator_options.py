"""``--allocator`` and ``--alloc-conf``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from ...allocators import ALLOCATORS, EXACT, CachingOptions
from ...errors import SchedsimError


def allocator_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--allocator`` and ``--alloc-conf``."""
    function = click.option(
        "--alloc-conf",
        metavar="CONF",
        help="Settings of cuda-caching, as in PYTORCH_ALLOC_CONF: expandable_segments:True,...",
    )(function)
    return click.option(
        "--allocator",
        type=click.Choice([EXACT, *ALLOCATORS]),
        help="Count the bytes that this allocator reserves; exact (default) counts tensors alone.",
    )(function)


def read_options(allocator: str | None, alloc_conf: str | None) -> dict[str, Any]:
    """The options of `schedsim.allocate` that `alloc_conf` stands for."""
    if alloc_conf is None:
        return {}
    if allocator != "cuda-caching":
        raise SchedsimError(
            "--alloc-conf belongs to --allocator cuda-caching",
            hint="add it, or leave --alloc-conf out",
        )
    options = CachingOptions.parse(alloc_conf)
    fields = {name: getattr(options, name) for name in CachingOptions.__dataclass_fields__}
    return {name: value for name, value in fields.items() if value}

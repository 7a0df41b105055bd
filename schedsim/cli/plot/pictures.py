"""Writing pictures: the file's suffix gives the format; equal pictures give equal bytes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import click

from ...errors import SchedsimError
from ...files.atomic import write_atomically

SUFFIXES = (".svg", ".png", ".pdf")


def check_suffix(output: str, known: tuple[str, ...] = SUFFIXES) -> None:
    """Refuse a file whose suffix is not among `known`."""
    suffix = Path(output).suffix
    if suffix not in known:
        able = f"{', '.join(known[:-1])} or {known[-1]}"
        raise SchedsimError(f"-o {output}: cannot draw {suffix!r}", hint=f"use {able}")


def write_picture(figure: Any, output: str) -> None:
    """Write a figure of matplotlib to the file `output`."""
    import matplotlib

    buffer, kind = io.BytesIO(), Path(output).suffix[1:]
    # No dates and no random ids: the same command writes the same file.
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    with matplotlib.rc_context({"svg.hashsalt": "schedsim"}):
        figure.savefig(buffer, format=kind, bbox_inches="tight", dpi=150, metadata=dates)
    write_atomically(output, buffer.getvalue())
    click.echo(f"wrote {output}", err=True)

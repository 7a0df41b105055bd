"""How results look: aligned columns in a pipe, a table on a terminal, progress on stderr."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click


def print_json(document: Any) -> None:
    """Exactly one JSON document on stdout."""
    click.echo(json.dumps(document, indent=1))


def print_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: int = 1,
    right: Sequence[int] | None = None,
) -> None:
    """Rows under headers; the first `left` columns are flush left, the others right.

    Where `right` is given, the columns of these indices are flush right, and no others.
    """
    flush_right = set(range(left, len(headers)) if right is None else right)
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        from rich.console import Console
        from rich.table import Table

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for i, header in enumerate(headers):
            justify: Any = "right" if i in flush_right else "left"
            # Names and numbers stay whole; on a narrow terminal, text between them wraps.
            table.add_column(header, justify=justify, no_wrap=i == 0 or i in flush_right)
        for row in rows:
            table.add_row(*row)
        Console(markup=False, emoji=False, highlight=False).print(table)
        return
    widths = [max(len(line[i]) for line in [headers, *rows]) for i in range(len(headers))]
    for line in [headers, *rows]:
        cells = [
            cell.rjust(width) if i in flush_right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        click.echo("  ".join(cells).rstrip())


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Label and value, a line each, values aligned."""
    width = max(len(label) for label, _ in facts) + 2
    for label, value in facts:
        click.echo(f"{label:<{width}}{value}".rstrip())


@contextmanager
def working(message: str) -> Iterator[None]:
    """A spinner on stderr, on a terminal, once the work has taken a second."""
    if not sys.stderr.isatty():
        yield
        return
    status: list[Any] = []

    def begin() -> None:
        from rich.console import Console

        shown = Console(stderr=True).status(message)
        shown.start()
        status.append(shown)

    timer = threading.Timer(1.0, begin)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        for shown in status:
            shown.stop()


def percent(value: float) -> str:
    """A share with a sign: ``+12.34 %``."""
    return f"{value:+.2%}".replace("%", " %")

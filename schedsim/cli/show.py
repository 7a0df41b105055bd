"""The look of results: aligned columns in a pipe, a table on a terminal, progress on stderr."""

from __future__ import annotations

import itertools
import json
import os
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from ..plans.progress import Progress, watched


def print_json(document: Any) -> None:
    """Print exactly one JSON document on stdout."""
    click.echo(json.dumps(document, indent=1))


def print_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: int = 1,
    right: Sequence[int] | None = None,
    most: Sequence[int] | None = None,
) -> None:
    """Print rows under headers; the first `left` columns are flush left, the others right.

    If `right` is given, exactly the columns with these indices are flush right. If `most` is given,
    cells wider than that take several lines; a terminal wraps them at its own width.
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
    if most is not None:
        rows = _wrapped(rows, most)
    widths = [max(len(line[i]) for line in [headers, *rows]) for i in range(len(headers))]
    for line in [headers, *rows]:
        cells = [
            cell.rjust(width) if i in flush_right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        click.echo("  ".join(cells).rstrip())


def _wrapped(rows: Sequence[Sequence[str]], widths: Sequence[int]) -> list[list[str]]:
    """`rows` with wide cells wrapped to `widths`, over several lines."""
    found = []
    for row in rows:
        cells = [
            textwrap.wrap(cell, width, break_long_words=False, break_on_hyphens=False)
            for cell, width in zip(row, widths, strict=True)
        ]
        found += [list(line) for line in itertools.zip_longest(*cells, fillvalue="")]
    return found


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Print a line per label and value, values aligned."""
    width = max(len(label) for label, _ in facts) + 2
    for label, value in facts:
        click.echo(f"{label:<{width}}{value}".rstrip())


@contextmanager
def working(message: str) -> Iterator[None]:
    """Show a line on stderr, on a terminal, once the work has taken a second.

    The line says how long a search has run and, if its planner reports them, the best step time so
    far and the gap to the bound.
    """
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()

    def show(running: Sequence[Progress]) -> None:
        began_s = time.perf_counter()
        if done.wait(1.0):
            return
        from rich.console import Console

        with Console(stderr=True).status(message) as shown:
            while not done.wait(0.25):
                says = str(running[-1]) if running else f"{time.perf_counter() - began_s:.0f} s"
                shown.update(f"{message}: {says}")

    with watched() as running:
        thread = threading.Thread(target=show, args=(running,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def percent(value: float) -> str:
    """A share with a sign: ``+12.34 %``."""
    return f"{value:+.2%}".replace("%", " %")

"""``compare`` on the results of a sweep."""

from __future__ import annotations

import json

import click

from ...errors import SchedsimError
from ...files.atomic import write_atomically
from ...sweeps.results import read_rows
from ...sweeps.tables import Cell, lines_of
from ...units import format_bytes_short
from ..app import NO, YES
from ..show import percent, print_json, print_table

RESULTS_SUFFIX = ".jsonl"


def is_results(files: tuple[str, ...]) -> bool:
    """Whether the files are results of a sweep, and not a workload."""
    return any(name.endswith(RESULTS_SUFFIX) for name in files)


def only_results(files: tuple[str, ...], given: dict[str, object]) -> str:
    """The single results file; it is refused beside anything that describes a workload.

    Parameters
    ----------
    given
        Flag -> value, for flags that have no meaning for results.
    """
    if len(files) != 1:
        raise SchedsimError(
            "a results file does not go with other files", hint="give one .jsonl file"
        )
    for flag, value in given.items():
        if value is not None:
            raise SchedsimError(
                f"{flag} does not go with {files[0]}", hint="results have their own; leave it out"
            )
    return files[0]


def compare_results(file: str, planners: str | None, as_json: bool, output: str | None) -> int:
    """Print a line for each workload and budget of the results in `file`."""
    rows = read_rows(file)
    if planners is not None:
        names = [name.strip() for name in planners.split(",")]
        unknown = [name for name in names if name not in {row["planner"] for row in rows}]
        if unknown:
            raise SchedsimError(f"{file} has no rows of planner {unknown[0]!r}")
        rows = [row for row in rows if row["planner"] in names]
    if not rows:
        raise SchedsimError(f"{file} has no results yet", hint="schedsim sweep fills it")
    document = {"schema": "schedsim.results/1", "rows": rows}
    if output is not None:
        write_atomically(output, json.dumps(document, indent=1) + "\n")
    if as_json:
        print_json(document)
    else:
        labels, lines = lines_of(rows)
        print_table(
            ("workload", "budget", "bytes", "bound", *labels),
            [
                (
                    line.workload,
                    line.budget,
                    format_bytes_short(line.budget_bytes),
                    percent(line.lower_bound),
                    *(_cell(line.cells.get(label)) for label in labels),
                )
                for line in lines
            ],
            left=2,
        )
        found = [line for line in lines if any(cell.overheads for cell in line.cells.values())]
        scopes = ", ".join(sorted({line.bound_scope for line in found or lines}))
        click.echo(
            f"\ntime over store-all; bound over {scopes}; * proven optimal in the class that the "
            "planner searches"
        )
        errors = {row["error"]["message"]: row for row in rows if row["status"] == "error"}
        for message, row in errors.items():
            click.echo(f"{row['planner']} on {row['workload']}: {message}", err=True)
    return YES if any(row.get("overhead") is not None for row in rows) else NO


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    if not cell.overheads:
        if cell.error:
            return "error"
        least = cell.min_feasible_bytes
        return f"needs {format_bytes_short(least)}" if least is not None else "-"
    least_time, most_time = percent(cell.overheads[0]), percent(cell.overheads[-1])
    text = least_time if least_time == most_time else f"{least_time} .. {most_time}"
    if len(cell.overheads) < cell.num_rows:
        text += f" ({len(cell.overheads)} of {cell.num_rows})"
    return f"{text} *" if cell.optimal else text

"""The rows of a sweep over clusters, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from ...units import format_bytes_short, format_seconds
from ..show import print_table
from .cluster_choice import DEGREES


def show_cluster_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a line for each setting, in the order of the experiment."""
    print_table(
        ("setting", "reserved", "budget", "step", "tokens/s", "MFU", "degrees", "recompute", ""),
        [_line(row) for row in rows],
        left=1,
    )


def cluster_outcome(row: Mapping[str, Any]) -> str:
    """A row in some words."""
    if row["status"] == "error":
        return f"error: {row['error']['message']}"
    return " ".join(word for word in (*_line(row)[1:5:2], _line(row)[-1]) if word != "-")


def _line(row: Mapping[str, Any]) -> tuple[str, ...]:
    reserved, seconds = row.get("reserved_bytes"), row.get("step_s")
    degrees = row.get("degrees", {})
    split = [f"{name} {degrees[name]}" for name in DEGREES if degrees.get(name, 1) > 1]
    says = {"infeasible": "does not fit", "optimal": "fastest of the space", "error": "error"}
    return (
        row["workload"],
        "-" if reserved is None else format_bytes_short(reserved),
        format_bytes_short(row["budget_bytes"]),
        "-" if seconds is None else format_seconds(seconds),
        "-" if seconds is None else f"{row['tokens_per_device_s']:,.0f}",
        "-" if seconds is None else f"{row['mfu']:.1%}".replace("%", " %"),
        ", ".join(split) or "-",
        row.get("training", {}).get("recompute", "-"),
        says.get(row["status"], ""),
    )


def show_cluster_runs(labels: Sequence[tuple[str, int, str]], done: set[str]) -> None:
    """Print (label, bytes, key) of what a sweep would run."""
    print_table(
        ("setting", "budget", "done", "key"),
        [
            (label, format_bytes_short(size), "yes" if key in done else "no", key[:8])
            for label, size, key in labels
        ],
        left=1,
    )
    click.echo()

"""The page of the memory campaign, written from its file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from schedsim.units import format_bytes_short

REQUESTED_ALLOWED = (0.001, 2**16)
"""Share of the prediction, and bytes, that the requested bytes may differ by."""


def write_memory_page(path: Path) -> None:
    """Write the page beside the file `path`, with its name and the ending .md."""
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    facts, rows = lines[0]["environment"], lines[1:]
    path.with_suffix(".md").write_text("\n".join(memory_page(facts, rows)) + "\n")


def memory_page(facts: dict[str, str], rows: list[dict[str, Any]]) -> list[str]:
    """The lines of the page."""
    lines = ["# Memory of steps at the sizes that people train", ""]
    if "dry" in facts:
        lines += [f"From a dry device: **{facts['dry']}**.", ""]
    lines += ["| environment | |", "|---|---|"]
    lines += [f"| {key} | {value} |" for key, value in facts.items()]
    lines += [
        "",
        "Forward and backward of one step, gradients resident. *Predicted* and *requested* are the",
        "bytes of tensors and workspaces; *allocated* is rounded up to blocks, *reserved* is what",
        "the allocator takes from the device. A plan's budget bounds its requested bytes; the last",
        "column says whether the step runs where the allocator may reserve no more than that.",
        "Shares are of the way from the least feasible budget to the store-all peak. More time is",
        "as the plan predicts; on a dry device by the roofline of the data sheet.",
        "",
    ]
    lines += _summary([row for row in rows if "method" in row])
    header = ("method", "budget", "predicted", "requested", "gap", "allocated", "reserved")
    for model in dict.fromkeys(row["model"] for row in rows):
        lines += ["", f"## {model}", ""]
        mine = [row for row in rows if row["model"] == model]
        failures = [row["failed"] for row in mine if "failed" in row]
        if failures:
            lines.append(f"Not run: {failures[0]}")
            continue
        lines.append(f"`{mine[0]['target']}`")
        lines += ["", f"| {' | '.join((*header, 'more time', 'within its budget'))} |"]
        lines.append("|---|" + "--:|" * 7 + "---|")
        lines += [_row(row) for row in mine]
    return lines


def _summary(rows: list[dict[str, Any]]) -> list[str]:
    predicted = [row for row in rows if "predicted_bytes" in row and "requested_bytes" in row]
    share, absolute = REQUESTED_ALLOWED
    near = [
        row
        for row in predicted
        if abs(row["requested_bytes"] - row["predicted_bytes"])
        <= share * row["predicted_bytes"] + absolute
    ]
    plans = [row for row in predicted if "budget_bytes" in row]
    over = [row for row in plans if row["requested_bytes"] > row["budget_bytes"]]
    fit = [row for row in plans if row["fits_budget"]]
    return [
        f"- requested within 0.1 % and 64 KiB of the prediction: {len(near)} of {len(predicted)}",
        f"- plans whose requested bytes pass their budget: {len(over)} of {len(plans)}",
        f"- plans that run where the allocator has their budget alone: {len(fit)} of {len(plans)}",
    ]


def _row(row: dict[str, Any]) -> str:
    def size(name: str) -> str:
        return format_bytes_short(row[name]) if row.get(name) is not None else ""

    gap = ""
    if "predicted_bytes" in row and "requested_bytes" in row:
        gap = f"{row['requested_bytes'] / row['predicted_bytes'] - 1:+.3%}".replace("%", " %")
    cells = [
        row["method"],
        size("budget_bytes"),
        size("predicted_bytes"),
        size("requested_bytes") or "out of memory",
        gap,
        size("allocated_bytes"),
        size("reserved_bytes"),
        f"{row['overhead']:+.1%}".replace("%", " %") if "overhead" in row else "",
        {True: "yes", False: "no", None: ""}[row.get("fits_budget")],
    ]
    return f"| {' | '.join(cells)} |"

"""The page of the memory campaign, written from its file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from schedsim.units import format_bytes_short

REQUESTED_ALLOWED = (0.001, 2**16)
"""Allowed difference of requested bytes: share of the prediction, and bytes."""

RESERVED_ALLOWED = (0.01, 8 * 2**20)
"""Allowed difference of reserved bytes: share and bytes, of which the larger counts."""

WELL_USED = 0.97
"""The share of the budget that a plan which recomputes should reserve at least."""


def write_memory_page(path: Path) -> None:
    """Write the page beside the file `path`, under the same name with the suffix .md."""
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
        "Forward and backward of one step, without gradients before it; rows that name AdamW are",
        "of loops of three steps with their optimizer. *Requested* are the bytes",
        "of tensors and workspaces; *allocated* is rounded up to blocks, *reserved* is what the",
        "allocator takes from the device; requested and reserved bytes stand beside what was",
        "predicted. A plan's budget bounds what is reserved; the last column says whether the step",
        "runs where the allocator may reserve no more than that. Shares are of the way from the",
        "least feasible budget to what store-all reserves; the share of its budget that a plan",
        "reserves is of the run within it. More time is as the plan predicts; on a dry device by",
        "the roofline of the data sheet.",
        "",
    ]
    lines += _summary([row for row in rows if "method" in row])
    header = ("method", "budget", "predicted", "requested", "allocated", "predicted", "reserved")
    for model in dict.fromkeys(row["model"] for row in rows):
        lines += ["", f"## {model}", ""]
        mine = [row for row in rows if row["model"] == model]
        failures = [row["failed"] for row in mine if "failed" in row]
        if failures:
            lines.append(f"Not run: {failures[0]}")
            continue
        lines.append(f"`{mine[0]['target']}`")
        lines += ["", f"| {' | '.join((*header, 'gap', 'of budget', 'more time', 'within it'))} |"]
        lines.append("|---|" + "--:|" * 9 + "---|")
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
    share, absolute = RESERVED_ALLOWED
    told = [row for row in predicted if "predicted_reserved_bytes" in row]
    gaps = [abs(row["reserved_bytes"] - row["predicted_reserved_bytes"]) for row in told]
    right = [
        gap <= max(absolute, share * row["reserved_bytes"])
        for gap, row in zip(gaps, told, strict=True)
    ]
    exact = sum(gap == 0 for gap in gaps)
    plans = [row for row in predicted if "budget_bytes" in row]
    inside = [row for row in plans if row.get("reserved_within_bytes") is not None]
    over = [row for row in inside if row["reserved_within_bytes"] > row["budget_bytes"]]
    loops = [row for row in plans if "fits_budget" not in row]
    over += [row for row in loops if row["reserved_bytes"] > row["budget_bytes"]]
    returned = [row for row in plans if row["reserved_bytes"] > row["budget_bytes"]]
    alone = [row for row in plans if "fits_budget" in row]
    fit = [row for row in alone if row["fits_budget"]]
    used = [
        row
        for row in (*inside, *loops)
        if row.get("reserved_within_bytes", row["reserved_bytes"])
        >= WELL_USED * row["budget_bytes"]
    ]
    return [
        f"- requested within 0.1 % and 64 KiB of the prediction: {len(near)} of {len(predicted)}",
        f"- reserved within 1 % or 8 MiB of the prediction: {sum(right)} of {len(told)}, "
        f"to the byte {exact}",
        f"- plans that reserve more than their budget: {len(over)} of {len(plans)}; as many as "
        f"{len(returned)} would on a device with room, where nothing cached is returned to it",
        f"- plans that run where the allocator has their budget alone: {len(fit)} of {len(alone)}",
        f"- plans that reserve at least 97 % of their budget: {len(used)} of {len(plans)}",
    ]


def _row(row: dict[str, Any]) -> str:
    def size(name: str) -> str:
        return format_bytes_short(row[name]) if row.get(name) is not None else ""

    def share(part: str, whole: str, form: str) -> str:
        if row.get(part) is None or row.get(whole) is None:
            return ""
        return format(row[part] / row[whole] - (form[0] == "+"), form).replace("%", " %")

    cells = [
        row["method"],
        size("budget_bytes"),
        size("predicted_bytes"),
        size("requested_bytes") or "out of memory",
        size("allocated_bytes"),
        size("predicted_reserved_bytes"),
        size("reserved_bytes"),
        share("reserved_bytes", "predicted_reserved_bytes", "+.3%"),
        share("reserved_within_bytes", "budget_bytes", ".1%"),
        f"{row['overhead']:+.1%}".replace("%", " %") if "overhead" in row else "",
        {True: "yes", False: "no", None: ""}[row.get("fits_budget")],
    ]
    return f"| {' | '.join(cells)} |"

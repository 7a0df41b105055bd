"""The page of the memory campaign, written from its file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from schedsim.units import format_bytes_short

REQUESTED_ALLOWED = (0.001, 2**16)
"""Allowed difference of requested bytes: share of the prediction, and bytes."""

RESERVED_ALLOWED = (0.01, 8 * 2**20)
"""Allowed difference of reserved bytes: share and bytes, of which the larger counts."""

UNCAPTURED = "does not run on the whole device, block by block"
"""What came of one sample more, where not even its capture has room."""

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
        "Forward and backward of one step, without gradients before it; where gradients are kept,",
        "of a step that makes them and one that adds to them; rows that name AdamW are",
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
    batches = [row for row in rows if "maximize" in row]
    rows = [row for row in rows if "maximize" not in row]
    lines += _summary([row for row in rows if "method" in row])
    lines += _summary_of_batches([row for row in batches if "failed" not in row])
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
        short = [f"- {row['method']}: {_why_short(row)}" for row in mine if "faster" in row]
        if short:
            lines += ["", "Plans that leave more than 3 % of their budget:", "", *short]
    return lines + _batches(batches)


def _why_short(row: dict[str, Any]) -> str:
    """Why a plan reserves less than it may."""
    requested, reserved = (row["faster"][f"{name}_bytes"] for name in ("requested", "reserved"))
    if requested is None:
        return "no schedule is faster"
    repeats = row["faster"].get("repeats")
    if repeats is not None:
        return (
            f"without any one of its {repeats} repeated runs it would reserve at least "
            f"{format_bytes_short(reserved)}"
        )
    if requested > row["budget_bytes"]:
        return (
            "no faster plan fits: the next faster persistent schedule requests "
            f"{format_bytes_short(requested)}, which is proven"
        )
    return (
        "no faster plan of the exact curve fits: the next one requests "
        f"{format_bytes_short(requested)}, and the least that a faster one reserves is "
        f"{format_bytes_short(reserved)}"
    )


def _summary_of_batches(rows: list[dict[str, Any]]) -> list[str]:
    if not rows:
        return []
    fit = [row for row in rows if row.get("fits_reserved_bytes", math.inf) <= row["budget_bytes"]]
    not_more = [row for row in rows if "beyond_out_of_memory" in row]
    return [
        f"- largest batches by `--maximize batch` that fit: {len(fit)} of {len(rows)}; with one "
        f"sample more memory runs out: {len(not_more)} of {len(rows)}"
    ]


def _batches(rows: list[dict[str, Any]]) -> list[str]:
    if not rows:
        return []
    lines = [
        "",
        "## The largest batch within a budget",
        "",
        "`schedsim plan MODEL --maximize batch --mem BUDGET`, by blocks, run where the allocator",
        "may reserve no more than the budget; and one sample more, by the plan that reserves",
        "least of those found.",
        "",
        "| model | target | budget | largest batch | predicted | reserved | one more: least plan |"
        " run |",
        "|---|---|--:|--:|--:|--:|--:|---|",
    ]
    for row in rows:
        if "failed" in row:
            lines.append(f"| {row['maximize']} | | | | | | | not run: {row['failed']} |")
            continue
        sizes = [
            format_bytes_short(row[name]) if row.get(name) is not None else ""
            for name in (
                "budget_bytes",
                "fits_predicted_reserved_bytes",
                "fits_reserved_bytes",
                "beyond_predicted_reserved_bytes",
            )
        ]
        ran = "out of memory" if "beyond_out_of_memory" in row else "runs"
        if row.get("beyond_planned") == UNCAPTURED:
            ran = UNCAPTURED
        cells = [row["maximize"], f"`{row['target']}`", sizes[0], str(row["largest"])]
        cells += [sizes[1], sizes[2] or "out of memory", sizes[3], ran]
        lines.append(f"| {' | '.join(cells)} |")
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
        f"- plans that reserve at least 97 % of their budget: {len(used)} of {len(plans)}; of the "
        f"others, {sum(map(_none_faster_fits, plans))} have no faster plan that fits, of the exact "
        "curve of a chain or with one repeated run fewer of a graph",
    ]


def _none_faster_fits(row: dict[str, Any]) -> bool:
    """Whether it was looked for, and not found."""
    if "faster" not in row:
        return False
    reserved = row["faster"]["reserved_bytes"]
    return reserved is None or bool(reserved > row["budget_bytes"])


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

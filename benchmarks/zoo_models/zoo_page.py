"""The table of the zoo."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from .trial import CRASH, DIFFERENT, EQUAL, OVER, PLAIN, REFUSED, ROUNDING, TOLD, WAYS

RESULTS = (EQUAL, TOLD, ROUNDING, PLAIN, REFUSED, DIFFERENT, OVER, CRASH)
MARKS = {
    EQUAL: "=",
    TOLD: "=!",
    ROUNDING: "~",
    PLAIN: "plain",
    REFUSED: "no",
    DIFFERENT: "DIFFERENT",
}
MARKS |= {OVER: "OVER", CRASH: "CRASH"}
NO_LINE = "no line of repeated blocks was found"


def write_page(rows: list[dict[str, Any]], path: Path, num_models: int) -> None:
    """Markdown of `rows`, of a zoo of `num_models`."""
    path.write_text("\n".join(_page(rows, num_models)) + "\n")


def has_no_blocks(row: dict[str, Any]) -> bool:
    """Whether a model was asked for by blocks that it does not have: nobody would."""
    return row["way"] == "by blocks" and row["result"] == REFUSED and NO_LINE in row["says"]


def _page(rows: list[dict[str, Any]], num_models: int) -> list[str]:
    models = {row["model"]: row for row in rows}
    asked = [row for row in rows if not has_no_blocks(row)]
    sources = Counter(row["source"].partition(".")[0] for row in models.values())
    tried = {way: len({row["model"] for row in rows if row["way"] == way}) for way in WAYS}
    ways = ", ".join(f"{num} {way}" for way, num in tried.items())
    older = sum(bool(row.get("older")) for row in rows)
    lines = [
        "# The zoo",
        "",
        f"{len(models)} models ({', '.join(f'{n} of {s}' for s, n in sources.most_common())}), "
        "trained by AdamW with dropout on, plainly and within budgets: 80, 60 and 45 % of what a "
        "plain step takes beyond parameters, gradients and the optimizer's state, or the least "
        "that a refusal names. Losses, gradients, parameters, buffers and the generators of torch, "
        "Python and NumPy are compared after each step, and the peak by the allocator's own record "
        "with the budget, to the byte. `python benchmarks/zoo.py` makes this page, and goes on "
        f"where it was stopped: tried so far are {ways}, of {num_models} models in the zoo."
        + (f" {older} of the rows are of earlier code." if older else ""),
        "",
        "| way | rows | " + " | ".join(RESULTS) + " |",
        "|---|---:|" + "---:|" * len(RESULTS),
    ]
    for way in (*WAYS, "all"):
        mine = [row for row in asked if way in ("all", row["way"])]
        counts = Counter(row["result"] for row in mine)
        lines.append(
            f"| {way} | {len(mine)} | "
            + " | ".join(_share(counts[r], mine) for r in RESULTS)
            + " |"
        )
    lines += [
        "",
        "By model and way, at the three budgets in turn: `=` equal to the bit and within the "
        "budget, `=!` the same with a line that the call, a first step or the optimizer's step "
        "takes more, or may, `plain` the plain step with a line, `no` refused with a line, `-` no "
        "line of blocks. Below, what was said.",
        "",
        "| model | family | of | " + " | ".join(WAYS) + " | least peak, of the plain one |",
        "|---|---|---|" + "---|" * len(WAYS) + "---:|",
    ]
    for name, first in models.items():
        mine = [row for row in rows if row["model"] == name]
        cells = []
        for way in WAYS:
            by_way = [row for row in mine if row["way"] == way]
            marks = ["-" if has_no_blocks(row) else MARKS[row["result"]] for row in by_way]
            cells.append(" ".join(marks))
        peaks = [
            row["peak_bytes"] / row["plain_peak_bytes"]
            for row in mine
            if row["result"] in (EQUAL, TOLD)
        ]
        least = f"{min(peaks):.0%}" if peaks else ""
        lines.append(
            f"| {name} | {first['family']} | {first['source']} | {' | '.join(cells)} | {least} |"
        )
    told = [row for row in asked if row["result"] != EQUAL]
    lines += [
        "",
        "| model | way | budget | result | what was said, or differs |",
        "|---|---|---|---|---|",
    ]
    for row in told:
        says = row.get("differs") or row["says"]
        if row["result"] == OVER:
            over = row["peak_bytes"] - row["budget_bytes"]
            says = f"{over:,} bytes over {row['budget_bytes']:,}. {says}"
        text = says.replace("|", "/").replace("<", "&lt;")
        lines.append(
            f"| {row['model']} | {row['way']} | {row['budget']} | {row['result']} | {text} |"
        )
    return lines


def _share(num: int, rows: list[dict[str, Any]]) -> str:
    return f"{num} ({num / len(rows):.1%})" if num else "0"

"""Fills in what docs/rematlib.md says in numbers: its groups, and what is proven.

python benchmarks/rematlib/describe.py
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import check

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "rematlib.md"


def groups(index: dict[str, Any]) -> str:
    """A table with a row a group."""
    lines = ["", "| group | instances | ops | what |", "|---|---:|---:|---|"]
    for group, text in index["groups"].items():
        rows = [row for row in index["instances"] if row["group"] == group]
        sizes = [row["num_ops"] for row in rows]
        least, most = min(sizes), max(sizes)
        lines.append(f"| `{group}` | {len(rows)} | {least} to {most} | {text} |")
    return "\n".join([*lines, ""])


def counts(index: dict[str, Any]) -> str:
    """What is known of how many problems."""
    rows = index["instances"]
    text = [f"{len(rows)} instances, {sum(len(row['best']) for row in rows)} problems."]
    for kind in ("chain", "graph"):
        best = [one for row in rows if row["kind"] == kind for one in row["best"]]
        solved = sum(one["makespan_s"] == one["bound_s"] is not None for one in best)
        claimed = sum(one["status"] == "optimal" for one in best) - solved
        gaps = sorted(
            float(check.rational(one["makespan_s"]) / check.rational(one["bound_s"]) - 1)
            for one in best
            if one["bound_s"] and one["makespan_s"]
        )
        middle = f"{gaps[len(gaps) // 2]:.1%}".replace("%", " %")
        worst = f"{gaps[-1]:.1%}".replace("%", " %")
        text.append(
            f"Of {len(best)} on {kind}s, {solved} have a schedule that is certified to be optimal"
            + (f", {claimed} more one that a planner proved without one" if claimed else "")
            + (f"; the middle gap is {middle}, the largest {worst}." if gaps[-1] else ".")
        )
    least = [row for row in rows if row["least_proven"]]
    text.append(f"Of {len(rows)} least budgets, {len(least)} are proven to be the least.")
    return "\n".join(text)


def filled(page: str, index: dict[str, Any]) -> str:
    """The page with its numbers."""
    for name, content in (("groups", groups(index)), ("counts", counts(index))):
        pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        page = re.sub(pattern, lambda m, c=content: f"{m[1]}{c}\n{m[2]}", page, flags=re.DOTALL)
    return page


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(), check.read(HERE / "index.json")))

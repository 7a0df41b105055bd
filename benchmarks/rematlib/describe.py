"""Fills in what docs/rematlib.md says in numbers: its groups, and what is proven.

python benchmarks/rematlib/describe.py
"""

from __future__ import annotations

import re
from fractions import Fraction
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
        text.append(problems(f"Of {len(best)} on {kind}s, ", best))
        beyond = [one for one in best if "any_schedule" in one]
        if beyond:
            saved = max(
                1 - check.rational(one["any_schedule"]["makespan_s"]) / Fraction(one["makespan_s"])
                for one in beyond
            )
            begin = f"These are the best persistent ones. At {len(beyond)} of them one that is not "
            begin += (
                f"persistent is known to be faster, by up to {percent(float(saved))}: of those, "
            )
            text.append(problems(begin, [one["any_schedule"] for one in beyond]))
    least = [row for row in rows if row["least_proven"]]
    text.append(f"Of {len(rows)} least budgets, {len(least)} are proven to be the least.")
    return "\n".join(text)


def percent(share: float) -> str:
    """As pages write it."""
    return f"{share:.1%}".replace("%", " %")


def problems(begin: str, best: list[dict[str, Any]]) -> str:
    """How many of `best` are certified, claimed, and how far from their bounds."""
    solved = sum(one["makespan_s"] == one["bound_s"] is not None for one in best)
    claimed = sum(one["status"] == "optimal" for one in best) - solved
    gaps = sorted(
        float(check.rational(one["makespan_s"]) / check.rational(one["bound_s"]) - 1)
        for one in best
        if one["bound_s"] and one["makespan_s"]
    )
    return (
        f"{begin}{solved} have a schedule that is certified to be optimal"
        + (f", {claimed} more one that a planner proved without one" if claimed else "")
        + (
            f"; the middle gap is {percent(gaps[len(gaps) // 2])}, the largest {percent(gaps[-1])}."
            if gaps[-1]
            else "."
        )
    )


def filled(page: str, index: dict[str, Any]) -> str:
    """The page with its numbers."""
    for name, content in (("groups", groups(index)), ("counts", counts(index))):
        pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        page = re.sub(pattern, lambda m, c=content: f"{m[1]}{c}\n{m[2]}", page, flags=re.DOTALL)
    return page


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(), check.read(HERE / "index.json")))

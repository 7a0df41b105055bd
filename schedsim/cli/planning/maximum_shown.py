"""The output of ``plan --maximize``."""

from __future__ import annotations

from typing import Any

import click

from ...files.document import to_dict
from ...plans.maximize import Maximum, Sized
from ...units import format_bytes, format_seconds
from ..show import percent, print_facts, print_table

_MOST_SHOWN = 12


def _proof(found: Maximum, field: str) -> str:
    if found.beyond is None:
        return f"the search ended at {found.largest.size}, its limit"
    size, least = found.beyond.size, found.beyond.plan.min_feasible_bytes
    if found.proof != "proven":
        needs = f"; the least found is {format_bytes(least)}" if least is not None else ""
        return f"{field} {size}: nothing found that fits{needs}; not proven"
    needs = f"{field} {size} needs {format_bytes(least)}" if least else f"{field} {size} does not"
    text = f"{needs}, proven over {found.scope}"
    if found.checked_to > size:
        text += f"; none up to {found.checked_to} fits"
    return text


def show(found: Maximum, field: str, budget_bytes: int) -> None:
    """Print both sizes, what is proven about them, and a row for each size that was planned."""
    workload = found.largest.plan.workload.name
    facts = [
        ("workload", workload),
        ("budget", format_bytes(budget_bytes)),
        (f"largest {field}", f"{found.largest.size}, {_speed(found.largest, found.unit)}"),
        ("one more", _proof(found, field)),
        (f"fastest {field}", f"{found.fastest.size}, {_speed(found.fastest, found.unit)}"),
        (
            "",
            "no other can be faster, by store-all times"
            if found.fastest_proven
            else f"of the {len(found.tried)} sizes planned",
        ),
    ]
    print_facts(facts)
    click.echo()
    rows = [one for one in found.tried if one.plan.feasible or one is found.beyond]
    if len(rows) > _MOST_SHOWN:
        always = (found.largest, found.fastest, found.beyond)
        chosen = {len(rows) * k // _MOST_SHOWN for k in range(_MOST_SHOWN)}
        rows = [one for i, one in enumerate(rows) if i in chosen or one in always]
    print_table(
        (field, "status", "peak", "step time", "overhead", f"{found.unit}/s"),
        [_row(one) for one in rows],
        left=0,
    )


def _speed(sized: Sized, unit: str) -> str:
    plan = sized.plan
    assert plan.makespan_s is not None
    assert plan.overhead is not None
    step = f"step time {format_seconds(plan.makespan_s)}, {percent(plan.overhead)} over store-all"
    return f"{sized.rate:.4g} {unit}/s, {step}"


def _row(sized: Sized) -> tuple[str, ...]:
    plan = sized.plan
    if plan.makespan_s is None or plan.overhead is None or plan.peak_bytes is None:
        least = plan.min_feasible_bytes
        needs = f"needs {format_bytes(least)}" if least is not None else "-"
        return (str(sized.size), plan.status, needs, "-", "-", "-")
    return (
        str(sized.size),
        plan.status,
        format_bytes(plan.peak_bytes),
        format_seconds(plan.makespan_s),
        percent(plan.overhead),
        f"{sized.rate:.4g}",
    )


def document(found: Maximum, field: str, budget_bytes: int) -> dict[str, Any]:
    """The content that `show` prints, as a JSON document."""

    def row(sized: Sized) -> dict[str, Any]:
        return {
            "size": sized.size,
            "status": sized.plan.status,
            "content_hash": sized.plan.workload.content_hash,
            "peak_bytes": sized.plan.peak_bytes,
            "makespan_s": sized.plan.makespan_s,
            "overhead": sized.plan.overhead,
            "min_feasible_bytes": sized.plan.min_feasible_bytes,
            "work": sized.work,
            "work_per_s": sized.rate,
        }

    return {
        "schema": "schedsim.maximum/1",
        "maximize": field,
        "unit": found.unit,
        "budget_bytes": budget_bytes,
        "largest": row(found.largest),
        "fastest": row(found.fastest),
        "beyond": None if found.beyond is None else row(found.beyond),
        "proof": found.proof,
        "scope": found.scope,
        "checked_to": found.checked_to,
        "fastest_proven": found.fastest_proven,
        "tried": [row(one) for one in found.tried],
        "plan": to_dict(found.largest.plan),
    }

"""What ``plan --maximize`` does: the largest batch, sequence or depth that fits; the fastest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from ..errors import InfeasibleBudgetError, SchedsimError
from ..files.document import save, to_dict
from ..plans.maximize import MAX_SIZE, Maximum, Sized, maximize
from ..units import format_bytes, format_seconds
from ..workloads.given import is_target
from .app import NO, YES
from .inputs import Source, size_text
from .show import percent, print_facts, print_json, print_table, working

if TYPE_CHECKING:
    from ..dataflow.chain import Chain
    from ..dataflow.graph import Graph

_UNITS = {"batch": "samples", "seq": "tokens", "layers": "layers of samples"}
# A model is captured and measured at each size, which takes seconds.
_MOST_PLANS_OF_A_MODEL = 16
_MOST_SHOWN = 12
# Recomputing, a few layers' memory holds very many; beyond this it is no longer about memory.
_LIMITS = {"batch": MAX_SIZE, "seq": MAX_SIZE, "layers": 512}


def show_maximum(
    source: Source,
    budget_bytes: int,
    planner: str,
    options: dict[str, Any],
    field: str,
    as_json: bool,
    output: str | None,
) -> int:
    """Print the largest `field` that fits, and the fastest; write the plan of the largest."""
    family, arguments, work, step = _family(source, field)
    first = family(step)  # so that loading the simulator is no planning time, and errors come first
    try:
        with working(f"looking for the largest {field}"):
            found = maximize(
                family,
                budget_bytes,
                planner,
                work=work,
                unit=_UNITS[field],
                step=step,
                max_size=_LIMITS[field],
                compare=not source.is_model,
                max_plans=_MOST_PLANS_OF_A_MODEL if source.is_model else 64,
                **options,
            )
    except InfeasibleBudgetError as error:
        least = error.min_feasible_bytes
        click.echo(
            f"error: {first.name} does not fit in {format_bytes(budget_bytes)} with {planner}, "
            f"even with {field} {step}",
            err=True,
        )
        if least is not None:
            click.echo(
                f"hint: {error.plan.least.sentence()} there: --mem {size_text(least)}",
                err=True,
            )
        return NO
    if output is not None:
        save(found.largest.plan, output)
    if as_json:
        print_json(_document(found, field, budget_bytes))
    else:
        _show(found, field, budget_bytes)
        click.echo("\nnext")
        for title, sized in (("the largest", found.largest), ("the fastest", found.fastest)):
            line = f"schedsim plan {arguments(sized.size)} --mem {size_text(budget_bytes)}"
            click.echo(f"  {line}  # {title}")
    return YES


def _family(
    source: Source, field: str
) -> tuple[Callable[[int], Chain | Graph], Callable[[int], str], Callable[[int], float], int]:
    """Size -> workload, size -> arguments of it, size -> work of a step, and the step of sizes."""
    if source.is_model:
        target = next(name for name in source.files if is_target(name))
        name, *given = target.split(",")
        kept = [option for option in given if option.partition("=")[0] != field]
        batch = next((o.partition("=")[2] for o in given if o.startswith("batch=")), "1")

        def sized_source(size: int) -> Source:
            text = ",".join([name, *kept, f"{field}={size}"])
            return replace(source, files=tuple(text if f == target else f for f in source.files))

        num_samples, step = int(batch) if batch.isdigit() else 1, 1
    else:
        formula = source.formula()
        if formula is None:
            raise SchedsimError(
                f"--maximize {field} needs a workload that can change it",
                hint="give a --preset, --layers, FILE.py:FUNCTION or model:NAME",
            )

        def sized_source(size: int) -> Source:
            return replace(source, options={**source.options, field: size})

        from ..workloads.options import model_config

        if formula.synthetic is not None:
            num_samples = 1
        else:
            num_samples = model_config(replace(formula, **dict[str, Any]({field: 1}))).batch
        split = formula.sequence_parallel and field == "seq"
        step = (formula.tensor_parallel or 1) if split else 1

    def family(size: int) -> Chain | Graph:
        return sized_source(size).read().workload

    def arguments(size: int) -> str:
        return sized_source(size).arguments()

    def work(size: int) -> float:
        return float(size if field == "batch" else size * num_samples)

    return family, arguments, work, step


def _proof(found: Maximum, field: str) -> str:
    if found.beyond is None:
        return f"none was looked for beyond {found.largest.size}, the limit"
    size, least = found.beyond.size, found.beyond.plan.min_feasible_bytes
    if found.proof != "proven":
        needs = f"; the least found is {format_bytes(least)}" if least is not None else ""
        return f"{field} {size}: nothing found that fits{needs}; not proven"
    needs = f"{field} {size} needs {format_bytes(least)}" if least else f"{field} {size} does not"
    text = f"{needs}, proven over {found.scope}"
    if found.checked_to > size:
        text += f"; none up to {found.checked_to} fits"
    return text


def _show(found: Maximum, field: str, budget_bytes: int) -> None:
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


def _document(found: Maximum, field: str, budget_bytes: int) -> dict[str, Any]:
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

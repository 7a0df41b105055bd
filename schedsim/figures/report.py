"""A plan as one self-contained HTML page: summary, planners, memory, schedule, explanation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..analysis.explanation import Change, Explanation, explain
from ..dataflow.chain import Chain
from ..dataflow.variants import VARIANT_KINDS
from ..errors import MissingDependencyError, SchedsimError
from ..plans.claims import check_claims
from ..plans.plan import Plan
from ..plans.setting import refuse_copies
from ..simulation.schedule import Schedule
from ..simulation.simulator import Simulation, simulate
from ..units import (
    format_bytes,
    format_bytes_change,
    format_bytes_short,
    format_seconds,
    format_seconds_change,
)

if TYPE_CHECKING:
    from ..dataflow.graph import Graph

ROWS = 12
"""Number of rows that each table of the explanation shows."""


@dataclass(frozen=True, slots=True)
class _Card:
    label: str
    value: str
    note: str = ""
    css: str = ""


@dataclass(frozen=True, slots=True)
class _ReportTable:
    title: str
    headers: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    left: int
    more: str = ""


def report(workload: Chain | Graph, plan: Plan, assumptions: Sequence[str] = ()) -> str:
    """The page of `plan`, as HTML that needs nothing else: no network, no other file.

    Parameters
    ----------
    workload
        The workload that `plan` was made for, without the plan's variants.
    assumptions
        Lines that say where the workload comes from.

    Raises
    ------
    MissingDependencyError
        The extra ``report`` is not installed.
    SchedsimError
        The plan is infeasible.
    InvalidScheduleError
        The replay of the schedule gives another peak or step time than the plan says.

    Notes
    -----
    O(runs), and what `schedsim.explain` takes; the page has about 1.3 MB, most of it the drawing
    library.
    """
    try:
        from bokeh.embed import components
        from bokeh.resources import INLINE
        from jinja2 import Environment, FileSystemLoader
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "reports need bokeh, which is not installed", hint="pip install 'schedsim[report]'"
        ) from error
    from markupsafe import Markup

    from .report_figures import draw

    if plan.schedule is None:
        raise SchedsimError("the plan is infeasible: it has no schedule", hint="plan again")
    refuse_copies(plan.setting, plan.schedule, "a report")
    run = plan.setting.workload(workload, plan.schedule)
    simulation = plan.simulate(workload)
    check_claims(plan, simulation)
    everything = simulate(workload, Schedule.store_all(workload))
    explanation = explain(run, plan.schedule)
    script, (timeline, grid) = components(draw(run.graph, simulation, plan.budget_bytes))
    folder = Path(__file__).parent / "templates"
    template = Environment(loader=FileSystemLoader(folder), autoescape=True).get_template(
        "report.html"
    )
    return template.render(
        title=f"{workload.name}: {format_bytes(plan.budget_bytes)}",
        assumptions=assumptions,
        cards=_cards(plan, simulation, everything, run.stage_label(simulation.peak_op)),
        variants=_variants(plan),
        findings=explanation.findings,
        tables=[_planners(plan), *_explained(run, explanation)],
        footer=f"schedsim {plan.versions.get('schedsim')}; workload {plan.workload.content_hash}",
        timeline=Markup(timeline),
        grid=Markup(grid),
        bokeh_css=Markup(INLINE.render_css()),
        bokeh_js=Markup(_scripts(INLINE)),
        bokeh_script=Markup(script),
    )


def _scripts(resources: Any) -> str:
    """The core of the library; its widgets and tables are not used."""
    import bokeh

    folder = Path(bokeh.__file__).parent / "server" / "static" / "js"
    return f'<script type="text/javascript">{(folder / "bokeh.min.js").read_text()}</script>'


def _percent(value: float) -> str:
    return f"{value:.2%}".replace("%", " %")


def _cards(plan: Plan, simulation: Simulation, everything: Simulation, where: str) -> list[_Card]:
    chosen = plan.found_by
    share = simulation.peak_bytes / everything.peak_bytes if everything.peak_bytes else 0.0
    return [
        _Card("plan", plan.status, f"by {chosen}", plan.status),
        _Card("budget", format_bytes_short(plan.budget_bytes), format_bytes(plan.budget_bytes)),
        _Card("peak", format_bytes_short(simulation.peak_bytes), f"at {where}"),
        _Card("of store-all", _percent(share), format_bytes(everything.peak_bytes)),
        _Card("overhead", _percent(plan.overhead or 0.0), format_seconds(simulation.makespan_s)),
        _Card("gap to the bound", _percent(plan.gap or 0.0), f"over {plan.bound_scope}"),
        _Card("recomputed", str(simulation.num_recomputed), f"of {simulation.num_runs} runs"),
        _Card("static", format_bytes_short(plan.static_bytes), "resident all the time"),
    ]


def _variants(plan: Plan) -> list[str]:
    lines = [choice.label for choice in plan.variants]
    kinds = dict.fromkeys(k for choice in plan.variants for k in choice.variant.kind.split("+"))
    return lines + [f"{kind}: {VARIANT_KINDS[kind]}" for kind in kinds]


def _planners(plan: Plan) -> _ReportTable:
    rows = []

    def size(value: int | None) -> str:
        return "" if value is None else format_bytes_short(value)

    for row in plan.candidates or (plan.row,):
        rows.append(
            (
                row.planner,
                row.status,
                size(row.peak_bytes),
                "" if row.overhead is None else _percent(row.overhead),
                format_seconds(row.lower_bound_s),
                size(row.min_feasible_bytes),
                format_seconds(row.planning_s),
            )
        )
    headers = ("planner", "status", "peak", "overhead", "lower bound", "least budget", "planned in")
    return _ReportTable("Planners tried", headers, rows, 2)


def _explained(workload: Chain | Graph, explanation: Explanation) -> list[_ReportTable]:
    alive = [
        (
            tensor.name,
            tensor.category,
            workload.stage_label(tensor.written_op),
            "the end" if tensor.next_op is None else workload.stage_label(tensor.next_op),
            format_bytes_short(tensor.size_bytes),
        )
        for tensor in explanation.alive[:ROWS]
    ]
    headers = ("tensor", "category", "written by", "waits for", "size")
    hidden = len(explanation.alive) - len(alive)
    more = f"and {hidden} smaller" if hidden > 0 else ""
    tables = [_ReportTable("Alive at the peak", headers, alive, 4, more)]
    for title, changes in (
        ("Recomputing one thing more", explanation.recompute),
        ("Recomputing one thing less", explanation.keep),
    ):
        if changes:
            rows = [_change(workload, change) for change in changes[:ROWS]]
            hidden = len(changes) - len(rows)
            more = f"and {hidden} more" if hidden > 0 else ""
            tables.append(
                _ReportTable(title, ("op", "tensors", "peak", "time", "runs"), rows, 2, more)
            )
    return tables


def _change(workload: Chain | Graph, change: Change) -> tuple[str, ...]:
    return (
        workload.stage_label(change.op_name),
        ", ".join(change.tensors[:3]),
        format_bytes_change(change.peak_change_bytes),
        format_seconds_change(change.time_change_s),
        f"{change.num_runs_change:+d}",
    )

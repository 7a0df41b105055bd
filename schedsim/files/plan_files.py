"""Reading and writing ``schedsim.plan/2``."""

from __future__ import annotations

from typing import Any

from ..dataflow.chain import Chain
from ..dataflow.graph import Graph
from ..errors import InvalidWorkloadError
from ..plans.effort import ENDED_BY
from ..plans.least_budget import LeastBudget
from ..plans.plan import STATUSES, Candidate, Plan, WorkloadRef
from ..plans.scope import Scope
from ..plans.search import SearchRecord
from ..plans.source import SOURCE_KINDS, WorkloadSource
from ..simulation.schedule import Schedule
from .fields_to_dict import fields_to_dict
from .reader import Reader
from .setting_files import read_setting, setting_to_dict
from .workload_files import (
    CHAIN_SCHEMA,
    GRAPH_SCHEMA,
    read_chain,
    read_graph,
    workload_to_dict,
)

PLAN_SCHEMA = "schedsim.plan/2"


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """The content of a ``schedsim.plan/2`` file."""
    return {
        "schema": PLAN_SCHEMA,
        "workload": _reference_to_dict(plan.workload),
        "budget_bytes": plan.budget_bytes,
        "planner": plan.planner,
        "options": dict(plan.options),
        "setting": setting_to_dict(plan.setting),
        "search": _search_to_dict(plan.search),
        "status": plan.status,
        "peak_bytes": plan.peak_bytes,
        "static_bytes": plan.static_bytes,
        "makespan_s": plan.makespan_s,
        "store_all_s": plan.store_all_s,
        "overhead": plan.overhead,
        "lower_bound_s": plan.lower_bound_s,
        "bound_scope": str(plan.bound_scope),
        "gap": plan.gap,
        "planning_s": plan.planning_s,
        **_least_to_dict(plan.least),
        "candidates": [row.to_dict() for row in plan.candidates],
        "schedule": plan.schedule.names if plan.schedule is not None else None,
        "versions": dict(plan.versions),
        "seed": plan.seed,
    }


def read_plan(reader: Reader) -> Plan:
    """The plan of a ``schedsim.plan/2`` file."""
    fields = read_common(reader)
    plan = Plan(
        **fields,
        options=reader.take_settings("options"),
        setting=read_setting(reader.take_object("setting")),
        search=_read_search(reader.take_object("search")),
    )
    reader.finish()
    check_whole(plan)
    return plan


def read_common(reader: Reader) -> dict[str, Any]:
    """The fields of `Plan` that every version of the schema has in the same form."""
    names = reader.take_names("schedule", None)
    return {
        "workload": _read_reference(reader.take_object("workload")),
        "budget_bytes": reader.take_bytes("budget_bytes"),
        "planner": reader.take("planner", str),
        "status": reader.take_choice("status", STATUSES),
        "peak_bytes": reader.take_optional_bytes("peak_bytes"),
        "static_bytes": reader.take_bytes("static_bytes"),
        "makespan_s": reader.take_optional_total_seconds("makespan_s"),
        "store_all_s": reader.take_total_seconds("store_all_s"),
        "overhead": reader.take_optional_ratio("overhead"),
        "lower_bound_s": reader.take_total_seconds("lower_bound_s"),
        "bound_scope": Scope.parse(reader.take("bound_scope", str)),
        "gap": reader.take_optional_ratio("gap"),
        "planning_s": reader.take_seconds("planning_s"),
        "least": _read_least(reader),
        "schedule": Schedule.from_names(names) if names is not None else None,
        "candidates": tuple(_read_candidate(row) for row in reader.take_objects("candidates")),
        "versions": reader.take_texts("versions", {}),
        "seed": reader.take("seed", int, None),
    }


def _read_reference(item: Reader) -> WorkloadRef:
    return item.whole(
        WorkloadRef(
            name=item.take("name", str),
            kind=item.take_choice("kind", ("chain", "graph")),
            content_hash=item.take("content_hash", str),
            source=read_source(item),
            captured=item.take_part("captured", _read_captured),
        )
    )


def _read_captured(item: Reader) -> Chain | Graph:
    schema = item.take_choice("schema", (CHAIN_SCHEMA, GRAPH_SCHEMA))
    return read_chain(item) if schema == CHAIN_SCHEMA else read_graph(item)


def check_whole(plan: Plan) -> None:
    """Refuse a plan whose status contradicts its schedule, or that lacks a number."""
    if (plan.schedule is None) != (plan.status == "infeasible"):
        raise InvalidWorkloadError(
            f"a plan with status {plan.status!r} "
            + ("must have a schedule" if plan.schedule is None else "has none: it must be null"),
            path="schedule",
        )
    for name in ("peak_bytes", "makespan_s", "overhead", "gap"):
        if plan.schedule is not None and getattr(plan, name) is None:
            raise InvalidWorkloadError("null, but the plan has a schedule", path=name)


def _least_to_dict(least: LeastBudget) -> dict[str, Any]:
    item: dict[str, Any] = {"min_feasible_bytes": least.found_bytes, "binding_op": least.op}
    if least.floor_bytes:
        item["proven_least"] = {"floor_bytes": least.floor_bytes, "scope": str(least.scope)}
    if least.growing_bytes is not None:
        item["growing_bytes"] = least.growing_bytes
    return item


def _read_least(reader: Reader) -> LeastBudget:
    found = reader.take_optional_bytes("min_feasible_bytes")
    op = reader.take("binding_op", str, None)
    proven = reader.take_part("proven_least", _read_proven)
    growing = reader.take_optional_bytes("growing_bytes", None)
    if proven is None:
        return LeastBudget(found, op, growing_bytes=growing)
    floor, scope = proven
    if found is not None and found < floor:
        raise InvalidWorkloadError(
            f"{floor} is more than min_feasible_bytes {found}", path="proven_least.floor_bytes"
        )
    return LeastBudget(found, op, floor, scope, growing)


def _read_proven(item: Reader) -> tuple[int, Scope]:
    return item.whole((item.take_bytes("floor_bytes"), Scope.parse(item.take("scope", str))))


def _read_candidate(row: Reader) -> Candidate:
    return row.whole(
        Candidate(
            planner=row.take("planner", str),
            status=row.take_choice("status", STATUSES),
            peak_bytes=row.take_optional_bytes("peak_bytes"),
            makespan_s=row.take_optional_total_seconds("makespan_s"),
            overhead=row.take_optional_ratio("overhead"),
            lower_bound_s=row.take_total_seconds("lower_bound_s"),
            bound_scope=Scope.parse(row.take("bound_scope", str)),
            min_feasible_bytes=row.take_optional_bytes("min_feasible_bytes"),
            planning_s=row.take_seconds("planning_s"),
        )
    )


def _reference_to_dict(reference: WorkloadRef) -> dict[str, Any]:
    item: dict[str, Any] = {
        "name": reference.name,
        "kind": reference.kind,
        "content_hash": reference.content_hash,
    }
    if reference.source is not None:
        item["source"] = source_to_dict(reference.source)
    if reference.captured is not None:
        item["captured"] = workload_to_dict(reference.captured)
    return item


def source_to_dict(source: WorkloadSource) -> dict[str, Any]:
    """The source of a workload, as plan files hold it."""
    item: dict[str, Any] = {"kind": source.kind, "options": dict(source.options)}
    for name in ("path", "target"):
        if text := getattr(source, name):
            item[name] = text
    return item


def read_source(reference: Reader) -> WorkloadSource | None:
    """The source that `source_to_dict` wrote in the field ``source``; ``None`` without it."""
    return reference.take_part("source", _read_source)


def _read_source(item: Reader) -> WorkloadSource:
    return item.whole(
        WorkloadSource(
            kind=item.take_choice("kind", SOURCE_KINDS),
            options=item.take_settings("options"),
            path=item.take("path", str, ""),
            target=item.take("target", str, ""),
        )
    )


def _search_to_dict(search: SearchRecord) -> dict[str, Any]:
    return fields_to_dict(search, table="figures")


def _read_search(item: Reader) -> SearchRecord:
    return item.whole(
        SearchRecord(
            chosen=item.take("chosen", str, ""),
            num_moves=item.take("num_moves", int, None),
            ended_by=item.take_choice("ended_by", ENDED_BY, "itself"),
            bound_by=item.take("bound_by", str, ""),
            bound_op=item.take("bound_op", str, ""),
            figures=item.take_settings("figures"),
        )
    )

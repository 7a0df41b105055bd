"""What is told of a planned step: what its budget counts, its peak and its overhead."""

from __future__ import annotations

from typing import Any

from schedsim.units import format_bytes, format_seconds

from ..ways.way import table
from .step_planning import PlannedStep


def counted(planned: PlannedStep) -> dict[str, int]:
    """Bytes at the predicted peak by what they are; their sum is the peak."""
    state, plan = planned.captured.state, planned.plan
    assert plan.schedule is not None
    workload = planned.captured.workload
    simulation = plan.simulate(workload)
    kinds = simulation.by_category()
    graph = workload.graph
    made = {t for op in graph.ops if op.phase != "forward" for t in op.writes}
    made &= set(graph.results)
    grads = sum(t.size_bytes for t in simulation.live_tensors() if t.name in made)
    grads += planned.captured.kept_gradients_bytes
    found = {
        "parameters": state.parameters_bytes,
        "buffers": state.buffers_bytes,
        "gradients": grads,
        "optimizer": state.optimizer_bytes,
        "extra": state.extra_bytes,
        "workspace": kinds["workspace"],
    }
    found["activations"] = simulation.peak_bytes - sum(found.values())
    return found


def report_lines(planned: PlannedStep) -> list[str]:
    """The lines for people: what was counted and how, the predicted peak and overhead."""
    plan, state = planned.plan, planned.captured.state
    size = len(planned.captured.workload.op_names)
    lines = [
        f"{plan.workload.name} by {planned.captured.level} ({size} ops), "
        f"budget {format_bytes(plan.budget_bytes)}: {plan.status} ({plan.planner})"
    ]
    notes = {
        "gradients": "resident throughout"
        if planned.captured.kept_gradients_bytes
        else "where they are made",
        "optimizer": state.optimizer_source,
        "activations": "with inputs, and gradients of activations",
    }
    for name, size_bytes in counted(planned).items():
        if size_bytes or name in notes:
            note = f"  ({notes[name]})" if name in notes else ""
            lines.append(f"  {name:<14}{format_bytes(size_bytes)}{note}")
    assert plan.peak_bytes is not None
    lines.append(f"  predicted peak {format_bytes(plan.peak_bytes)}")
    lines.append(f"  store-all peak {format_bytes(planned.store_all_bytes)}")
    if planned.measured_bytes is not None:
        lines.append(f"  measured peak  {format_bytes(planned.measured_bytes)}")
    if plan.overhead is not None and plan.gap is not None:
        lines.append(f"  overhead       {plan.overhead:+.2%}, at most {plan.gap:.2%} of it spare")
    if gathering := getattr(planned.module, "gathering", ""):
        lines.append(f"  communication  {gathering}")
    lines.append(f"  check          {planned.check_note}")
    num = planned.captured.num_parts
    if num > 1 and plan.makespan_s is not None:
        lines.append(
            f"  micro-batches  {num}, each {format_seconds(plan.makespan_s)}; "
            f"a step {format_seconds(num * plan.makespan_s)}"
        )
    lines += [f"  {line}" for line in (table(list(planned.ways)) if planned.ways else [])]
    lines += [f"  note: {note}" for note in planned.captured.notes]
    return lines


def report_dict(planned: PlannedStep) -> dict[str, Any]:
    """What `report_lines` tells, for JSON."""
    return {
        "level": planned.captured.level,
        "budget_bytes": planned.plan.budget_bytes,
        "peak_bytes": planned.plan.peak_bytes,
        "measured_bytes": planned.measured_bytes,
        "store_all_bytes": planned.store_all_bytes,
        "num_parts": planned.captured.num_parts,
        "check": planned.check_note,
        "counted_bytes": counted(planned),
        "ways": [way.to_dict() for way in planned.ways],
    }

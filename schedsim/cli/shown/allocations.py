"""Output about the bytes that an allocator reserves."""

from __future__ import annotations

from typing import Any

from ...allocators import EXACT, Allocation, CachingOptions, allocate
from ...allocators.allocation import times
from ...allocators.planning import measured_steps
from ...dataflow.streams import compute_stream_of
from ...plans.plan import Plan
from ...simulation.simulator import Simulation
from ...units import format_bytes
from ..options.allocator_options import read_options


def of_plan(plan: Plan | None) -> tuple[str | None, dict[str, Any]]:
    """The allocator that a plan was made for, and its options."""
    if plan is None or plan.setting.allocator is None:
        return None, {}
    return plan.setting.allocator.name, dict(plan.setting.allocator.options)


def allocator_words(plan: Plan) -> list[str]:
    """The shell arguments that ask for the plan's allocator."""
    name, options = of_plan(plan)
    if name is None:
        return []
    conf = ["--alloc-conf", str(CachingOptions(**options))] if options else []
    return ["--allocator", name, *conf]


def allocations(
    simulation: Simulation, allocator: str, budget_bytes: int | None, options: dict[str, Any]
) -> dict[str, Allocation]:
    """One allocation per device of the simulation; on a device as large as the budget if needed.

    An unlimited device is tried first: if it never exceeds the budget, the allocator never has to
    return memory.
    """
    found = {}
    for pool in filter(compute_stream_of, simulation.pool_names):
        given = dict(options, pool=pool, num_steps=measured_steps(simulation._graph))
        found[pool] = allocate(simulation, allocator, **given)
        if budget_bytes is not None and found[pool].peak_reserved_bytes > budget_bytes:
            found[pool] = allocate(simulation, allocator, capacity_bytes=budget_bytes, **given)
    return found


def describe(pool: str, found: Allocation) -> list[tuple[str, str]]:
    """Lines of the output: label and value."""
    where = "" if pool == "device" else f" on {pool}"
    peak = found.peak_reserved_bytes
    extra = f"{found.extra:+.2%}".replace("%", " %")
    facts = [
        ("reserved", f"{format_bytes(peak)}{where} by {found.allocator}, {extra} over requested"),
        ("  allocated", format_bytes(found.peak_allocated_bytes)),
        ("  stuck", f"{format_bytes(int(found.stuck_bytes.max(initial=0)))} at most"),
    ]
    if found.num_emptied:
        facts.append(("  emptied", f"{times(found.num_emptied)}, as the device was full"))
    if not found.fits:
        facts.append(("  fails", f"asking for {found.failed_item}"))
    return facts


def document(found: Allocation) -> dict[str, Any]:
    """An allocation as part of a JSON document."""
    return {
        "allocator": found.allocator,
        "options": dict(found.options),
        "peak_reserved_bytes": found.peak_reserved_bytes,
        "peak_allocated_bytes": found.peak_allocated_bytes,
        "requested_bytes": found.bound_bytes,
        "fragmentation": found.fragmentation_at_peak,
        "stuck_bytes": int(found.stuck_bytes.max(initial=0)),
        "fits": found.fits,
        "failed_item": found.failed_item,
        "num_emptied": found.num_emptied,
        "num_segments": found.num_segments,
    }


def allocations_with_problems(
    simulation: Simulation,
    plan: Plan | None,
    budget_bytes: int | None,
    allocator: str | None,
    alloc_conf: str | None,
) -> tuple[dict[str, Allocation], list[str]]:
    """The allocations by the allocator asked for, or else the plan's, and the problems found."""
    options = read_options(allocator, alloc_conf)
    if allocator is None:
        allocator, options = of_plan(plan)
    if allocator is None or allocator == EXACT:
        return {}, []
    found = allocations(simulation, allocator, budget_bytes, options)
    return found, _problems(found, plan, budget_bytes)


def _problems(
    found: dict[str, Allocation], plan: Plan | None, budget_bytes: int | None
) -> list[str]:
    """The problems: too little memory, or other numbers than the plan's."""
    wrong = []
    for pool, one in found.items():
        if not one.fits:
            size = format_bytes(budget_bytes or 0)
            wrong.append(f"{one.allocator} runs out of memory on a {pool} of {size}")
    choice = None if plan is None else plan.setting.allocator
    said = None if choice is None else choice.reserved_bytes
    one = found.get("device", next(iter(found.values())))
    if said is not None and one.fits and (one.allocator, dict(one.options)) == of_plan(plan):
        got = one.peak_reserved_bytes
        if said != got:
            wrong.append(f"the plan says {said} bytes reserved, the replay {got}")
    return wrong

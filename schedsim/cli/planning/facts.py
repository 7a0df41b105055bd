"""The summary that ``schedsim plan`` prints."""

from __future__ import annotations

from ...dataflow.variants import VARIANT_KINDS
from ...plans.plan import Plan
from ...simulation.simulator import Simulation
from ...units import format_bytes, format_bytes_short, format_seconds
from ..given.loaded import Loaded
from ..options.rule_options import rule_facts
from ..show import percent, print_facts
from ..shown.allocations import allocations, describe
from ..shown.copy_facts import copy_facts
from ..shown.level_facts import level_facts


def show_plan(loaded: Loaded, plan: Plan, everything: Simulation) -> None:
    """Print the facts of a feasible `plan`; `everything` is the store-all step."""
    assert plan.schedule is not None
    assert plan.overhead is not None
    simulation = plan.simulate(loaded.given)
    chosen = plan.found_by
    facts = [
        ("plan", f"{plan.status}, by {chosen} in {format_seconds(plan.planning_s)}"),
        ("budget", format_bytes(plan.budget_bytes)),
        (
            "peak",
            f"{format_bytes(simulation.peak_bytes)} at {loaded.label(simulation.peak_op)}, "
            f"run {simulation.peak_run} of {simulation.num_runs}",
        ),
    ]
    for name, size in simulation.by_category().items():
        if size:
            facts.append((f"  {name}", f"{format_bytes_short(size):>10}"))
    allocator = plan.setting.allocator
    if allocator is not None:
        found = allocations(simulation, allocator.name, plan.budget_bytes, dict(allocator.options))
        for pool, allocation in found.items():
            facts += describe(pool, allocation)
        facts.append(("planned for", format_bytes(allocator.inner_budget_bytes or 0)))
    facts += [
        ("store-all peak", _compared(everything.peak_bytes, simulation.peak_bytes)),
        (
            "step time",
            f"{format_seconds(simulation.makespan_s)}, {percent(plan.overhead)} over store-all "
            f"{format_seconds(plan.store_all_s)}",
        ),
        (
            "lower bound",
            f"{format_seconds(plan.lower_bound_s)} over {plan.bound_scope}, "
            f"gap {(plan.gap or 0):.2%}".replace("%", " %"),
        ),
        (
            "recomputed",
            f"{simulation.num_recomputed} of {simulation.num_runs - simulation.num_copies} op runs",
        ),
    ]
    facts += _variant_facts(plan)
    facts += rule_facts(plan.setting.rules)
    if plan.setting.link is not None:
        facts += copy_facts(simulation, plan.setting.link)
    facts += level_facts(plan, simulation)
    print_facts(facts)


def _variant_facts(plan: Plan) -> list[tuple[str, str]]:
    """The variants that are used, how often, and their effect on the numbers of training."""
    if not plan.variants:
        return []
    counts: dict[str, list[str]] = {}
    for choice in plan.variants:
        # The name of a graph variant says what it does, and to which tensor.
        name = choice.variant.name if choice.stage else choice.variant.name.split()[0]
        counts.setdefault(name, []).append(choice.stage or choice.variant.name.split()[-1])
    facts: list[tuple[str, str]] = []
    for name, where in counts.items():
        some = where[0] if len(where) == 1 else f"{where[0]} .. {where[-1]}"
        facts.append(("variants" if not facts else "", f"{name}: {len(where)} times, {some}"))
    kinds = dict.fromkeys(k for choice in plan.variants for k in choice.variant.kind.split("+"))
    return facts + [("", f"{kind}: {VARIANT_KINDS[kind]}") for kind in kinds]


def _compared(everything: int, peak: int) -> str:
    """The store-all peak, and how much of it the plan needs."""
    share = f"{peak / everything:.1%}".replace("%", " %") if everything else "0 %"
    return f"{format_bytes(everything)}, of which the plan needs {share}"

"""Which variants of a graph to use, beside what to recompute."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from schedsim.dataflow.graph import Graph
from schedsim.dataflow.variants import ChosenVariant, GraphVariant, graph_options, resolve
from schedsim.plans.effort import Effort
from schedsim.plans.least_budget import LeastBudget
from schedsim.plans.plan import Plan, make_plan
from schedsim.plans.scope import ANY_SCHEDULE
from schedsim.plans.setting import Setting

from .local_search import local_search

# Shares of the variants, best price first, that are tried before the search closes in.
_FIRST_SHARES = (0.0, 0.25, 0.5, 1.0)


def variant_search(
    graph: Graph,
    budget_bytes: int,
    allow: Collection[str],
    *,
    effort: Effort,
    **options: Any,
) -> list[Plan]:
    """Plans of `local_search` on `graph` with more and more of its variants, the best plan last.

    The variants are ranked by the bytes that they save per second; of variants that exclude each
    other only the best stays. Prefixes of that ranking are searched, closing in on the best prefix;
    the empty prefix is always tried. Each prefix is searched with an equal part of the effort.

    Parameters
    ----------
    allow
        Kinds of variants that may be chosen.
    effort
        The work of all searches together.
    **options
        Options of `local_search`.

    Returns
    -------
    list of Plan
        One plan for each prefix tried, infeasible ones included. Their bound is that of the step
        without recomputation, which is below any schedule with variants.

    Notes
    -----
    About ten searches, and O(variants * log variants + conflicts) beside them.
    """
    ranked = _ranked(graph, allow)
    tried: dict[int, Plan] = {}
    num_searches = 8
    given = effort.to_options()

    def interrupted() -> bool:
        return effort.cancelled

    def search(count: int, first: bool = False) -> None:
        if count in tried or interrupted():
            return
        chosen = tuple(ChosenVariant(variant) for variant in ranked[:count])
        changed = resolve(graph, chosen)
        assert isinstance(changed, Graph)
        with effort.part(1.0 / (num_searches - len(tried))) as part:
            if effort.moves is not None:
                part.moves = effort.moves // num_searches
            plan = local_search(changed, budget_bytes, effort=part, **options)
        tried[count] = make_plan(
            graph,
            budget_bytes,
            plan.schedule,
            planner="local_search",
            # The bound of this search holds for the graph with these variants alone: no bound here.
            options={**plan.options, **given, "variants": count},
            bound_scope=ANY_SCHEDULE,
            # Only searches that every budget begins with name a least budget: they find it again
            # there.
            least=LeastBudget(plan.min_feasible_bytes, plan.binding_op) if first else LeastBudget(),
            seed=plan.seed,
            setting=Setting(variants=chosen),
            search=replace(plan.search, bound_by=""),
        )

    for share in _FIRST_SHARES:
        search(round(share * len(ranked)), first=True)
    while len(tried) < num_searches and not interrupted():
        best = min(tried, key=lambda count: _rank(tried[count], count))
        counts = sorted(tried)
        at = counts.index(best)
        beside = [(best + other) // 2 for other in counts[max(0, at - 1) : at + 2] if other != best]
        new = [count for count in beside if count not in tried]
        if not new or effort.is_over():
            break
        search(new[0])
    return sorted(tried.values(), key=lambda plan: (plan.feasible, -(plan.makespan_s or 0.0)))


def _rank(plan: Plan, count: int) -> tuple[bool, float, int]:
    if plan.makespan_s is None:  # nothing fits: with more variants a schedule may
        return True, -float(count), count
    return False, plan.makespan_s, count


def _ranked(graph: Graph, allow: Collection[str]) -> list[GraphVariant]:
    """The variants allowed, most bytes per second first, less those that a better one excludes."""
    readers: dict[str, int] = {}
    for op in graph.ops:
        if op.phase == "backward":
            for tensor in op.reads:
                readers[tensor] = readers.get(tensor, 0) + 1

    def price(variant: GraphVariant) -> tuple[float, str]:
        dropped: dict[str, int] = {}
        for table in variant.instead.values():
            for tensor in table:
                dropped[tensor] = dropped.get(tensor, 0) + 1
        # A tensor that another backward op still reads stays.
        freed = sum(graph.size_of(t) for t, count in dropped.items() if count == readers.get(t))
        made = sum(size for sizes in variant.writes.values() for size in sizes.values())
        made += sum(sum(op.writes.values()) for op in variant.adds if op.phase == "forward")
        seconds = sum(op.time_s for op in variant.adds)
        worth = float(freed - made)
        return (-worth / seconds if seconds else -worth * 1e30), variant.name

    touched: set[tuple[str, ...]] = set()
    found = []
    for variant in sorted(graph_options(graph, allow), key=price):
        if price(variant)[0] >= 0 and variant.adds:
            continue
        mine = _touches(variant)
        if mine.isdisjoint(touched):
            touched |= mine
            found.append(variant)
    return found


def _touches(variant: GraphVariant) -> set[tuple[str, ...]]:
    """The tensors that no other chosen variant may touch: many `GraphVariant.excludes` at once."""
    reads = {("read", op, tensor) for op, table in variant.instead.items() for tensor in table}
    writes = {("write", op, tensor) for op, sizes in variant.writes.items() for tensor in sizes}
    return reads | writes | {("op", op.name) for op in variant.adds}

"""The planner that most users want: exact where it can be, proven where it cannot."""

from __future__ import annotations

import time
from dataclasses import replace

from schedsim.chain import Chain
from schedsim.plans import Plan, with_candidates

from .bisection import bisection
from .chen import chen_greedy
from .frontier import frontier
from .periodic import periodic
from .persistent import MAX_STAGES, WorkLimitReached
from .revolve import revolve
from .rotor import rotor
from .store_all import store_all


def auto(
    chain: Chain,
    budget_bytes: int,
    *,
    gap: float = 0.01,
    time_limit_s: float = 10.0,
) -> Plan:
    """The best plan for `chain` within `budget_bytes`, by the strongest method that is in time.

    Store-all where it fits; else the exact frontier; where that has too many break points, rotor
    with as many slots as the gap asks for; for chains beyond `MAX_STAGES`, the best of the
    heuristics. The plan's candidates list what was tried.

    Parameters
    ----------
    gap, time_limit_s
        As of `rotor`.

    Examples
    --------
    >>> from schedsim import Chain
    >>> chain = Chain.from_arrays("four", 1, forward_s=[1] * 4, backward_s=[1] * 4,
    ...                           output_bytes=[1] * 4, saved_bytes=[1] * 4)
    >>> auto(chain, 6).makespan_s, auto(chain, 7).candidates[0].planner
    (10.0, 'store_all')
    """
    started = time.perf_counter()
    tried = [store_all(chain, budget_bytes)]
    if not tried[0].feasible:
        if chain.num_stages > MAX_STAGES:
            heuristics = (periodic, chen_greedy, bisection, revolve)
            tried += [planner(chain, budget_bytes) for planner in heuristics]
        else:
            try:
                # About a tenth of the time allowed, by points merged in a second.
                work = int(2e7 * max(time_limit_s, 1.0))
                tried.append(frontier(chain, budget_bytes, max_points=30_000_000, max_work=work))
            except WorkLimitReached:
                left_s = max(0.0, time_limit_s - (time.perf_counter() - started))
                tried.append(rotor(chain, budget_bytes, gap=gap, time_limit_s=left_s))
    best = min(tried, key=_rank)
    least = min(
        (plan for plan in tried if plan.min_feasible_bytes is not None),
        key=lambda plan: plan.min_feasible_bytes or 0,
    )
    chosen = replace(
        best,
        planner="auto",
        options={**best.options, "chosen": best.planner},
        min_feasible_bytes=least.min_feasible_bytes,
        binding_op=least.binding_op,
    )
    return with_candidates(chosen, tried, planning_s=time.perf_counter() - started)


def _rank(plan: Plan) -> tuple[bool, float, int]:
    """Feasible before infeasible, then by time, then by peak; among infeasible, by least budget."""
    if plan.makespan_s is None or plan.peak_bytes is None:
        return (True, float(plan.min_feasible_bytes or 2**62), 0)
    return (False, plan.makespan_s, plan.peak_bytes)

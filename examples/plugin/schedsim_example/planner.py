"""A planner: evicts the largest saved bundles of a chain until the step fits."""

from __future__ import annotations

from schedsim.algorithms import PlannerInfo

from schedsim import Chain, Schedule, simulate


def largest_first(chain: Chain, budget_bytes: int, *, most: int = 0) -> Schedule | None:
    """Evicts the largest saved bundles first, and recomputes each just before its backward.

    Stage outputs stay, so that each recomputation is a single forward.

    Parameters
    ----------
    most
        Evict no more bundles than this; 0 for no limit.
    """

    def bundle_bytes(i: int) -> int:
        return chain.stages[i].saved_bytes - chain.stages[i].output_bytes

    num = chain.num_stages
    by_size = sorted(range(num), key=bundle_bytes, reverse=True)
    for count in range(min(most or num, num) + 1):
        schedule = _schedule(num, set(by_size[:count]))
        if simulate(chain, schedule).peak_bytes <= budget_bytes:
            return schedule
    return None


def _schedule(num_stages: int, evicted: set[int]) -> Schedule:
    names = [f"F{i}" for i in range(num_stages)] + ["loss"]
    for i in reversed(range(num_stages)):
        names += [f"F{i}", f"B{i}"] if i in evicted else [f"B{i}"]
    return Schedule.from_names(names)


LARGEST_FIRST = PlannerInfo(
    name="largest_first",
    kinds=("chain",),
    summary="evicts the largest saved bundles until the step fits",
    source="example",
    complexity="O(L^2)",
    function=largest_first,
)

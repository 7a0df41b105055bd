"""Small helpers that several sources need."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, exp, log

from schedsim import Chain, Graph, Plan, Schedule, simulate
from schedsim.api import try_plan
from schedsim.simulation.simulator import Simulation


def unit_chain(num_stages: int, *, backward_s: float = 2.0, saved_bytes: int = 1) -> Chain:
    """Equal stages of a second and a byte; the bundle is `saved_bytes`, output included."""
    ones = [1] * num_stages
    return Chain.from_arrays(
        f"unit{num_stages}",
        1,
        forward_s=ones,
        backward_s=[backward_s] * num_stages,
        output_bytes=ones,
        saved_bytes=[saved_bytes] * num_stages,
    )


def num_forward_runs(schedule: Schedule, workload: Chain | Graph) -> int:
    """Runs of forward ops in `schedule`, after a replay has found it legal."""
    simulate(workload, schedule)
    ops = workload.graph.ops if isinstance(workload, Chain) else workload.ops
    is_forward = [op.phase == "forward" for op in ops]
    return sum(is_forward[run] for run in schedule.bind(workload).tolist())


def store_all(workload: Chain | Graph) -> Simulation:
    """The step with everything kept."""
    return simulate(workload, Schedule.store_all(workload))


def forward_share(workload: Chain | Graph) -> float:
    """f / (f + b): the overhead of one more forward of everything, of the time of a step."""
    ops = workload.graph.ops if isinstance(workload, Chain) else workload.ops
    return sum(op.time_s for op in ops if op.phase == "forward") / workload.store_all_s


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean of positive numbers."""
    logs = [log(value) for value in values]
    return exp(sum(logs) / len(logs))


def budget_at(graph: Graph, fraction: float) -> int:
    """That share of the store-all peak, rounded up to a byte."""
    return ceil(store_all(graph).peak_bytes * fraction - 1e-6)


def searched(
    graph: Graph, budget_bytes: int, *, order: str = "fixed", max_moves: int, time_limit_s: float
) -> Plan:
    """The plan of a local search that ends by its moves: the same on every machine in time."""
    return try_plan(
        graph,
        budget_bytes,
        "local_search",
        order=order,
        num_threads=1,
        max_moves=max_moves,
        time_limit_s=time_limit_s,
    )


def overhead_percent(plan: Plan) -> float | None:
    """Overhead of a plan in percent; ``None`` if no plan fits."""
    return None if plan.overhead is None else 100 * plan.overhead

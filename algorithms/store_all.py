"""The baseline that recomputes nothing."""

from __future__ import annotations

from schedsim.dataflow.chain import Chain
from schedsim.dataflow.graph import Graph
from schedsim.plans.plan import Plan, best_of, timed
from schedsim.simulation.schedule import Schedule


@timed()
def store_all(workload: Chain | Graph, budget_bytes: int) -> Plan:
    """The plan that runs every op once and keeps all that is read later; O(ops).

    Optimal over any schedule where it fits, as every op must run at least once.

    Examples
    --------
    >>> from schedsim import Chain
    >>> chain = Chain.from_arrays("one", 1, forward_s=[1], backward_s=[2], output_bytes=[1],
    ...                           saved_bytes=[1])
    >>> store_all(chain, 4).status
    'optimal'
    """
    no_options: dict[str, int] = {}
    schedules = [(no_options, Schedule.store_all(workload))]
    return best_of(workload, budget_bytes, schedules, planner="store_all")

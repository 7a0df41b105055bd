"""The baseline that keeps only the inputs of stages."""

from __future__ import annotations

from schedsim.dataflow.chain import Chain
from schedsim.plans.plan import Plan, best_of, timed

from .segment_schedule import segment_schedule


@timed()
def recompute_all(chain: Chain, budget_bytes: int) -> Plan:
    """The plan that stores every stage input and replays each stage but the last once; O(L).

    Most frameworks call this full activation checkpointing, per stage.

    Examples
    --------
    >>> from schedsim import Chain
    >>> chain = Chain.from_arrays("two", 1, forward_s=[1, 1], backward_s=[2, 2],
    ...                           output_bytes=[1, 1], saved_bytes=[9, 9])
    >>> recompute_all(chain, 100).makespan_s
    7.0
    """
    no_options: dict[str, int] = {}
    schedules = [(no_options, segment_schedule(chain, range(chain.num_stages)))]
    return best_of(chain, budget_bytes, schedules, planner="recompute_all")

"""Plans read off the bound: what the cuts evict is recomputed when it is needed."""

from __future__ import annotations

import pytest
from schedsim.algorithms.exhaustive import exhaustive
from schedsim.algorithms.graphs.cuts import cuts

import schedsim
from schedsim import Schedule, simulate
from schedsim.plans.scope import ANY_SCHEDULE

ortools = pytest.importorskip("ortools", reason="moccasin needs the extra cp")


def test_cuts_repeat_what_is_cheapest():
    """One tensor too many at the turn: one of the ops that take 1 s runs again."""
    chain = schedsim.Chain.from_arrays(
        "five",
        1,
        forward_s=[1, 5, 1, 5, 1],
        backward_s=[1] * 5,
        output_bytes=[10] * 5,
        saved_bytes=[10] * 5,
    )
    peak = simulate(chain, Schedule.store_all(chain)).peak_bytes
    plan = cuts(chain.graph, peak - 10, order="free")
    assert (plan.status, plan.bound_scope) == ("optimal", ANY_SCHEDULE)
    assert plan.makespan_s == exhaustive(chain, peak - 10).makespan_s == chain.store_all_s + 1

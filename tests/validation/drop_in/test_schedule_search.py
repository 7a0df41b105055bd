"""How long a schedule is searched."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")

from schedsim.validation.drop_in import schedule_search
from schedsim.validation.drop_in.drop_in_options import DropInOptions

from schedsim import Chain
from schedsim.api import try_plan


@pytest.mark.parametrize("late", [1, 2, 3])
def test_a_search_that_finds_nothing_goes_on_before_the_budget_is_refused(late, monkeypatch):
    """A schedule that is found by luck, or with more effort, is no reason to refuse a step."""
    efforts = []
    chain = Chain.from_arrays(
        "three",
        9,
        forward_s=[1] * 3,
        backward_s=[2] * 3,
        output_bytes=[9] * 3,
        saved_bytes=[20] * 3,
    )

    def unlucky(workload, budget_bytes, planner, effort):
        efforts.append(effort)
        plan = try_plan(workload, budget_bytes, planner, effort=effort)
        is_late = len(efforts) >= late
        return plan if is_late else replace(plan, schedule=None, status="infeasible")

    monkeypatch.setattr(schedule_search, "try_plan", unlucky)
    search = schedule_search.ScheduleSearch(DropInOptions(budget=10**6, effort=0.5))
    found = search.search_long(chain, 10**6, 1.0)
    assert found.schedule is not None
    assert efforts == [0.5, 2.0, 6.0][:late]
    efforts.clear()
    refuted = search.search_long(chain, 1, 1.0)
    assert refuted.least.refutes(1)
    assert len(efforts) == 1

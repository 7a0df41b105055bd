"""How long a schedule is searched."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from lengths import Net, batch, planned, same  # noqa: E402
from schedsim.validation.drop_in.drop_in_options import DropInOptions  # noqa: E402
from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from schedsim.validation.drop_in.plans import schedule_search  # noqa: E402

from schedsim import Chain, Graph, Op, Schedule  # noqa: E402
from schedsim.api import try_plan  # noqa: E402
from schedsim.errors import InfeasibleBudgetError  # noqa: E402
from schedsim.plans.least_budget import LeastBudget  # noqa: E402


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


def test_groups_of_compiled_parts_come_in_any_order_where_there_are_no_other_ranks(monkeypatch):
    """Ranks average buckets of gradients as they come; ops of uncompiled parts keep the trace's."""
    asked = []

    def noted(workload, budget_bytes, planner, *, order="fixed", **options):
        asked.append(order)
        return try_plan(workload, budget_bytes, planner, order=order, **options)

    ops = [Op("x", writes={"x": 1}, time_s=1.0)]
    for k in range(3):
        ops += [
            Op(f"large{k}", reads=("x",), writes={f"a{k}": 10}, time_s=1.0),
            Op(f"small{k}", reads=(f"a{k}",), writes={f"b{k}": 1}, time_s=1.0),
        ]
    graph = Graph("branches", tuple(ops), results=tuple(f"b{k}" for k in range(3)))
    monkeypatch.setattr(schedule_search, "try_plan", noted)

    def orders(budget_bytes, compiles):
        asked.clear()
        options = DropInOptions(budget=10**6, effort=0.2, compile=compiles)
        plan = schedule_search.ScheduleSearch(options).search(graph, budget_bytes, 1.0)
        if plan.schedule is not None:
            assert plan.schedule == Schedule.store_all(graph)  # nothing moves for nothing
        return asked

    assert orders(10**6, compiles=True) == ["free"]
    assert orders(5, compiles=True) == ["free", "fixed"]
    assert orders(10**6, compiles=False) == ["fixed"]
    monkeypatch.setattr(schedule_search, "has_ranks", lambda: True)
    assert orders(10**6, compiles=True) == ["fixed"]


@pytest.mark.slow
@pytest.mark.parametrize("broken", [False, True])
def test_a_share_that_a_small_first_step_does_not_fit_says_what_it_is_of(broken):
    """And what to do where larger steps follow: then the same share is enough."""
    torch.manual_seed(0)
    small, large = batch(2), batch(64)
    with pytest.raises(InfeasibleBudgetError, match="does not fit") as refused:
        planned(Net(broken=broken), small, "70%")
    assert "70% is of the largest step so far" in refused.value.hint
    assert "largest={0: SIZE}" in refused.value.hint
    if not broken:
        torch._dynamo.reset()
        model = Net()
        plain = planned(model, small, "70%", largest={1: 64}, dynamic=True)
        same(model, plain, small, session_in(model).budget_bytes)
        same(model, plain, large, session_in(model).budget_bytes)


def test_a_named_budget_has_room_for_what_a_line_said_is_not_counted():
    """The next try would say it again, and be refused once more as it exceeds the budget."""
    nothing = dict.fromkeys(("unmeasured_bytes", "optimizer_bytes", "late_gradient_bytes"), int)
    known = SimpleNamespace(
        coming_bytes=0, growing_bytes=20, uncounted_bytes=lambda: 900, **nothing
    )
    few = 1024  # for results that the loop collects
    assert schedule_search.named_budget(known, 500).startswith(f"budget={920 + few} ")
    assert schedule_search.named_budget(known, 950).startswith(f"budget={970 + few} ")


def test_a_named_budget_has_room_for_a_few_results_more():
    """MoCo was refused again for 7 kB of 4 MB: what its loss is made of, in variables."""
    nothing = ("coming_bytes", "growing_bytes")
    asked = ("uncounted_bytes", "unmeasured_bytes", "optimizer_bytes", "late_gradient_bytes")
    known = SimpleNamespace(**dict.fromkeys(nothing, 0), **dict.fromkeys(asked, int))
    assert schedule_search.named_budget(known, 4 << 20).startswith(f"budget={4 * 1028 << 10} ")


@pytest.mark.parametrize(
    ("roomy", "guessed"), [(None, False), (1_001_000, False), (1_400_000, True)]
)
def test_a_refusal_says_what_of_its_name_is_a_guess(roomy, guessed):
    """As far as that is much: the budget without it may do."""
    plan = SimpleNamespace(
        min_feasible_bytes=10**6, least=LeastBudget(10**6), binding_op=None, budget_bytes=10**5
    )
    known = SimpleNamespace(
        budget_bytes=10**5,
        records=[],
        coming_bytes=20_000,
        growing_bytes=0,
        gradient_bytes=lambda: 10_000,
        optimizer_bytes=lambda: 0,
        options=SimpleNamespace(optimizer=None),
        made_bytes=0,
        others_bytes=0,
        others_hold_bytes=0,
        is_share=False,
    )
    hint = schedule_search.infeasible(known, "step", plan, roomy).hint
    bare = 10**6 + 10**6 // 256 + 30_000
    assert (f"{bare} may do" in hint) == guessed
    named = int(re.search(r"budget=(\d+)", hint)[1])
    assert named == max(10**6, roomy or 0) * 257 // 256 + 30_000
    # A new kind of step has as much room where others were measured: it was refused once more.
    known.records, known.unmeasured_bytes, known.uncounted_bytes = [None], int, int
    known.late_gradient_bytes = int
    hint = schedule_search.infeasible(known, "step", plan, roomy).hint
    assert int(re.search(r"budget=(\d+)", hint)[1]) == named - 10_000

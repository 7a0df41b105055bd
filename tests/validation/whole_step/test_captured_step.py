"""A captured step as a workload: what its content is, and what comes to it."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from made_ranks import on_ranks  # noqa: E402
from schedsim.validation.ranks.one_plan import plan_hash  # noqa: E402
from schedsim.validation.whole_step import step_planning  # noqa: E402
from schedsim.validation.whole_step.step_capture import capture_step  # noqa: E402
from schedsim.validation.whole_step.step_planning import plan_step  # noqa: E402
from schedsim.validation.whole_step.step_settings import Settings  # noqa: E402
from torch import nn  # noqa: E402


@pytest.fixture(scope="module", params=["op", "block"])
def captured(request):
    """A step of three layers."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)))
    settings = Settings("100%", lambda y: y.square().mean(), level=request.param)
    return capture_step(model, (torch.randn(4, 8),), {}, settings)


def test_what_comes_besides_the_model_replaces_what_came_before(captured):
    once = captured.with_added(1000)
    assert once.added_bytes == 1000
    assert once.workload.static_bytes == captured.workload.static_bytes + 1000
    assert once.with_added(300).workload.static_bytes == captured.workload.static_bytes + 300


def test_the_content_of_a_step_has_no_times_and_nothing_besides_the_model(captured):
    """Another machine, and an optimizer, run the same step; another size does not."""
    assert captured.with_added(1000).structure_hash == captured.structure_hash
    assert captured.store_all_s > 0
    workload = captured.workload
    if captured.level == "op":
        ops = tuple(replace(op, time_s=op.time_s + 1, workspace_bytes=99) for op in workload.ops)
        slower = replace(workload, ops=ops)
        first = replace(workload.ops[0], writes=dict.fromkeys(workload.ops[0].writes, 12))
        larger = replace(workload, ops=(first, *workload.ops[1:]))
    else:
        stages = tuple(replace(s, forward_s=9.0, backward_s=9.0) for s in workload.stages)
        slower = replace(workload, stages=stages)
        first = replace(workload.stages[0], saved_bytes=workload.stages[0].saved_bytes + 4)
        larger = replace(workload, stages=(first, *workload.stages[1:]))
    assert replace(captured, workload=slower).structure_hash == captured.structure_hash
    assert replace(captured, workload=larger).structure_hash != captured.structure_hash


def _slower(captured, times):
    ops = tuple(replace(op, time_s=times * (op.time_s + 1e-3)) for op in captured.workload.ops)
    return replace(captured, workload=replace(captured.workload, ops=ops))


def _step_of(rank, captured, with_graph):
    """A step whose graph fits no budget; in smaller groups, with the times of the rank."""
    first = replace(captured.workload.ops[0], workspace_bytes=10**9)
    wide = replace(captured.workload, ops=(first, *captured.workload.ops[1:]))
    made = _slower(captured, 1 + rank) if with_graph(rank) else None
    return replace(captured, workload=wide, narrower=lambda given: made)


@pytest.mark.parametrize("captured", ["op"], indirect=True)
def test_ranks_plan_in_small_groups_together(captured):
    """Each measures its own times, and they follow one plan: they were refused for other steps."""

    def planned(ranks, rank):
        settings = Settings("100%", lambda y: y.square().mean(), level="op", ranks=ranks)
        step = _step_of(rank, captured, lambda rank: True)
        return plan_step(step, 10**6, 10**6, settings, ((torch.randn(4, 8),), {})).plan

    plans = on_ranks(2, planned)
    assert all(plan.schedule is not None for plan in plans)
    assert len({plan_hash(plan) for plan in plans}) == 1


@pytest.mark.parametrize("captured", ["op"], indirect=True)
def test_ranks_have_small_groups_together_or_not_at_all(captured):
    """As where inductor fails on one of them."""

    def narrowed(ranks, rank):
        return _step_of(rank, captured, lambda rank: rank == 0).narrowed((), ranks)

    assert on_ranks(2, narrowed) == [None, None]


SETTINGS = Settings("100%", lambda y: y.square().mean(), level="op")


def _planned(step, budget_bytes=10**6):
    return plan_step(step, budget_bytes, 10**6, SETTINGS, ((torch.randn(4, 8),), {}))


@pytest.mark.parametrize("captured", ["op"], indirect=True)
def test_the_next_smaller_groups_are_tried_where_nothing_fits(captured):
    """Not the smallest at once, which are slower; and those where the next do not fit either."""
    small = _slower(captured, 5)
    middle = replace(_slower(captured, 2), narrower=lambda given: small)
    too_large = replace(_step_of(0, captured, bool), narrower=lambda given: middle)
    assert _planned(too_large).captured.store_all_s == middle.store_all_s
    neither = replace(_step_of(0, captured, bool), narrower=lambda given: small)
    both = replace(_step_of(0, captured, bool), narrower=lambda given: neither)
    assert _planned(both).captured.store_all_s == small.store_all_s


@pytest.mark.parametrize("captured", ["op"], indirect=True)
def test_smaller_groups_are_tried_once_where_a_plan_repeats_much(captured, monkeypatch):
    """The quicker of both plans is taken; without repeats no code is compiled."""
    asked, wide = [], _slower(captured, 1)

    def with_groups(step):
        return replace(wide, narrower=lambda given: asked.append(step) or step)

    quick, slow = _slower(captured, 0.5), _slower(captured, 50)
    assert _planned(with_groups(quick)).captured.store_all_s == wide.store_all_s
    assert not asked
    monkeypatch.setattr(step_planning, "_MUCH_REPEATED", -0.1)
    assert _planned(with_groups(quick)).captured.store_all_s == quick.store_all_s
    assert _planned(with_groups(slow)).captured.store_all_s == wide.store_all_s
    assert len(asked) == 2

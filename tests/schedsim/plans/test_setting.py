"""What a plan runs on is one typed value, and every way to simulate a plan goes through it."""

from __future__ import annotations

import json

import pytest

import schedsim
from schedsim.dataflow.variants import StageVariant
from schedsim.files.document import from_dict, to_dict
from schedsim.plans.links import Link
from schedsim.plans.offloading import Offloading
from schedsim.plans.setting import PLAIN, Setting

CHAIN = schedsim.Chain.from_arrays(
    "four", 4, forward_s=[1] * 4, backward_s=[2] * 4, output_bytes=[4] * 4, saved_bytes=[20] * 4
)
INT8 = StageVariant("int8", "quantize", saved_bytes=8)
VARIED = schedsim.Chain(
    "varied", 4, tuple(schedsim.Stage(f"s{i}", 1, 2, 4, 20, variants=(INT8,)) for i in range(4))
)


def with_variants() -> schedsim.Plan:
    # Store-all needs 92 bytes. Four bundles of 8 bytes instead of 20 fit where four of 20 do not.
    return schedsim.plan(VARIED, 56, allow=("quantize",))


def with_copies() -> schedsim.Plan:
    return schedsim.plan(CHAIN, 60, link="64B/s")


@pytest.mark.parametrize(("make", "workload"), [(with_variants, VARIED), (with_copies, CHAIN)])
def test_a_plan_simulates_as_it_says_by_each_way(make, workload):
    """``simulate(workload, plan)``, ``plan.simulate(workload)`` and the plan's numbers agree."""
    plan = make()
    assert plan.setting != PLAIN
    for told in (schedsim.simulate(workload, plan), plan.simulate(workload)):
        assert (told.peak_bytes, told.makespan_s) == (plan.peak_bytes, plan.makespan_s)


@pytest.mark.parametrize(("make", "workload"), [(with_variants, VARIED), (with_copies, CHAIN)])
def test_the_bare_schedule_of_a_changed_workload_is_refused(make, workload):
    """On the plain workload it would cost something else, and nobody would know."""
    plan = make()
    for one in (plan, from_dict(json.loads(json.dumps(to_dict(plan))))):
        with pytest.raises(schedsim.SchedsimError, match=r"of a plan with (variants|copies)"):
            schedsim.simulate(workload, one.schedule)


def test_the_schedule_of_a_plain_plan_is_simulated_by_itself():
    """The setting changes nothing there."""
    plan = schedsim.plan(CHAIN, 60)
    assert plan.setting == PLAIN
    assert schedsim.simulate(CHAIN, plan.schedule).peak_bytes == plan.peak_bytes


def test_a_plan_of_another_workload_is_refused():
    """Its op names fit, its bytes do not."""
    other = schedsim.Chain("other", 8, CHAIN.stages)
    with pytest.raises(schedsim.InvalidScheduleError, match="another workload"):
        schedsim.simulate(other, schedsim.plan(CHAIN, 60))


def test_what_is_neither_schedule_nor_plan_is_refused():
    """A list of names is the likely mistake."""
    with pytest.raises(schedsim.SchedsimError, match="neither a schedule nor a plan"):
        schedsim.simulate(CHAIN, ["F0"])


def test_limits_of_the_caller_come_before_those_of_the_plan():
    """The plan's own budget and host memory stay for the pools that the caller does not name."""
    setting = Setting(copies=Offloading(Link(64.0), Link(64.0), host_bytes=1000))
    plan = with_copies()
    run = setting.workload(CHAIN, plan.schedule)
    assert setting.limits(run, 60) == {"device": 60, "host": 1000}
    assert setting.limits(run, 60, {"host": 8}) == {"device": 60, "host": 8}
    assert PLAIN.limits(CHAIN, 60) == {}

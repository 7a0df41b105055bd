"""Whether a plan is of a step of this model."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.whole_step.belonging import _differences, captured_for  # noqa: E402
from schedsim.validation.whole_step.step_settings import Settings  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim import Schedule  # noqa: E402
from schedsim.errors import SchedsimError  # noqa: E402
from schedsim.plans.offloading import Offloading  # noqa: E402

LOSS = nn.functional.mse_loss


def line(num=4, width=16, bias=True):
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(width, width, bias=bias), nn.Tanh()) for _ in range(num))
    )


def data(num=64):
    return torch.randn(num, 16), torch.randn(num, 16)


@pytest.fixture(scope="module")
def planned():
    model, inputs = line(), data()
    module = schedsim.rematerialize(model, inputs, "90%", LOSS, level="block", effort=0.1)
    return module, model, inputs


def test_the_same_model_takes_its_plan(planned):
    """And another one of the same form, whatever its weights."""
    module, _, inputs = planned
    other = line()
    other[0][0].weight.data.mul_(3)
    again = schedsim.apply(other, module.plan, inputs, LOSS)
    assert again.plan.schedule == module.plan.schedule


@pytest.mark.parametrize(
    ("model", "inputs", "says"),
    [
        (line(5), data(), "the model has .* which the plan does not run"),
        (line(3), data(), "the plan runs .* which the model has not"),
        (line(bias=False), data(), "static bytes are"),
        (line(), data(640), "over its budget of"),
    ],
    ids=["deeper", "shallower", "smaller", "more data"],
)
def test_another_step_is_refused_with_what_differs(planned, model, inputs, says):
    """The message names both, the hint what to do."""
    with pytest.raises(SchedsimError, match=f"is not of this step of .*{says}") as caught:
        schedsim.apply(model, planned[0].plan, inputs, LOSS)
    assert "plan again" in caught.value.hint


def test_a_plan_without_a_schedule_is_refused(planned):
    """It is infeasible."""
    module, model, inputs = planned
    infeasible = replace(
        module.plan, schedule=None, status="infeasible", setting=module.plan.setting
    )
    with pytest.raises(SchedsimError, match="the plan is infeasible"):
        schedsim.apply(model, infeasible, inputs, LOSS)


def test_copies_are_no_ops_of_the_model(planned):
    """They count as known where the plan copies; a schedule that is not legal says so."""
    module, model, inputs = planned
    plan = module.plan
    captured, _ = captured_for(plan, model, inputs, {}, Settings("90%", loss=LOSS))
    assert _differences(plan, captured) == []
    names = ["d2h:a1", *plan.schedule.names]
    odd = replace(plan, schedule=Schedule.from_names(names))
    assert "'d2h:a1', which the model has not" in _differences(odd, captured)[0]
    linked = replace(odd, setting=replace(plan.setting, copies=Offloading.over("pcie4")))
    assert not any("has not" in line for line in _differences(linked, captured))

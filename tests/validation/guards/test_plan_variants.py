"""The plans of one form of a step."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402
from schedsim.validation.guards.plan_variants import PlainStepWarning  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402


def a_line():
    """A model that both levels can plan, and its inputs."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4)))
    return model, torch.randn(64, 8), torch.randn(64, 8)


@pytest.mark.parametrize("level", ["auto", "op"])
def test_every_second_step_is_compared_and_a_wrong_plan_is_left(level):
    """A runtime that has gone wrong is found at the second step, and the loop stays right."""
    model, x, target = a_line()
    module = schedsim.rematerialize(
        model, (x, target), "90%", F.mse_loss, effort=0.1, check=2, level=level
    )
    right = module._plans.last.module.forward
    module._plans.last.module.forward = lambda *given: 2.0 * right(*given)
    wrong, expected = module(x, target), F.mse_loss(model(x), target)
    assert torch.equal(wrong, 2.0 * expected)
    kind = PlainStepWarning if level == "op" else UserWarning
    what = "step 2 by the plan is not the plain one: the loss is off"
    with pytest.warns(kind, match=what) as caught:
        assert torch.equal(module(x, target), expected)
    assert len(caught) == 1
    assert torch.equal(module(x, target), expected)

"""The plans of one model, by the kind of its steps."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

import schedsim  # noqa: E402

LOSS = nn.functional.mse_loss


def planned(num=64, **options):
    """Three layers with a plan for `num` samples."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(3)))
    return schedsim.rematerialize(model, batch(num), "90%", LOSS, effort=0.2, **options)


def batch(num):
    return torch.randn(num, 16), torch.randn(num, 16)


@pytest.mark.parametrize(
    ("given", "line"), [({"shapes": "pad"}, "shapes='pad'"), ({"max_shapes": 0}, "max_shapes=0")]
)
def test_what_is_not_understood_is_refused_by_name(given, line):
    with pytest.raises(schedsim.SchedsimError, match=line):
        planned(**given)


def test_another_shape_is_refused_where_that_was_asked_for():
    module = planned(shapes="raise")
    module(*batch(64)).backward()
    with pytest.raises(schedsim.SchedsimError, match="the step is not as planned") as refused:
        module(*batch(32))
    assert "shapes='plan'" in refused.value.hint


def test_the_plan_of_the_first_inputs_is_known_after_its_step_is_dropped():
    """`last_plan` is that of the last step, and no more plans are kept than was asked for."""
    module = planned(64, max_shapes=1)
    first = module.plan
    module(*batch(32)).backward()
    assert module.plan is first
    assert module.last_plan is not first
    assert module.plans == [module.last_plan]


def test_a_plan_that_is_given_takes_the_place_of_its_own():
    module = planned(64)
    first = module.plan
    module.replan("100%")
    module(*batch(64)).backward()
    second = module.plan
    assert second.budget_bytes > first.budget_bytes
    module.use(first, *batch(64))
    assert module.plan.schedule == first.schedule
    assert module.budget_bytes == first.budget_bytes
    module(*batch(64)).backward()
    names = list(first.schedule.names)
    assert all(names.count(op) == runs for op, runs in module.run_counts.items())

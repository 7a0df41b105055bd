"""Models by name, as in ``resnet50,batch=4``: configurations, and how options are read."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.models import build_model  # noqa: E402
from small_models import SMALL  # noqa: E402


@pytest.mark.parametrize("label", SMALL)
def test_small_ones_give_every_parameter_a_gradient(label):
    """loss(model(*inputs)) is a scalar whose backward reaches all of the model."""
    name, options = SMALL[label]
    model, inputs, loss = build_model(name, **options)
    loss(model(*inputs)).backward()
    lacking = [n for n, p in model.named_parameters() if p.grad is None]
    assert lacking == []


def test_the_same_seed_gives_the_same_model():
    """Weights and inputs; the global generator is left as it was."""
    before = torch.get_rng_state()
    one, two = (build_model("mlp", layers=2, hidden=8, batch=2) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one.inputs[0], two.inputs[0])
    assert all(map(torch.equal, one.model.parameters(), two.model.parameters()))

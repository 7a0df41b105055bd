"""From a model to a chain, or a graph of blocks: sizes by storage, workspaces, times."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.block_level import capture_chain  # noqa: E402
from schedsim.validation.models import build_model  # noqa: E402
from small_models import SMALL  # noqa: E402
from torch import nn  # noqa: E402


def test_a_first_block_that_changes_the_input_is_refused():
    """It would change the user's own tensor at each repeat."""
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4))
    with pytest.raises(Exception, match="changes its input in place"):
        capture_chain(model, torch.randn(2, 4), lambda y: y.sum(), rounds=0)


def test_capture_leaves_no_trace():
    """Weights, statistics, gradients and random numbers are what they were."""
    name, options = SMALL["resnet"]
    model, inputs, loss = build_model(name, **options)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    state = torch.get_rng_state()
    capture_chain(model, inputs, loss, rounds=1)
    assert torch.equal(state, torch.get_rng_state())
    after = model.state_dict()
    assert all(torch.equal(value, after[key]) for key, value in before.items())
    assert all(p.grad is None for p in model.parameters())

"""Hooks on parameters that a loop registers, as for an optimizer that steps in the backward."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

import schedsim  # noqa: E402


class Around(nn.Module):
    """Blocks with an embedding before, and a head after them."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(3))
        self.head = nn.Linear(16, 50)

    def forward(self, ids):
        """Logits."""
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def test_a_hook_is_called_once_in_a_step():
    """Once for each parameter: an optimizer in it would step twice."""
    torch.manual_seed(0)
    model = Around()
    data = torch.randint(50, (64,)), torch.randint(50, (64,))
    module = schedsim.rematerialize(
        model, data, "90%", nn.functional.cross_entropy, level="block", effort=0.2
    )
    called = []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: called.append(name))
    module(*data)  # hooks are another state: this step is planned
    called.clear()
    module(*data).backward()
    assert sorted(called) == sorted(name for name, _ in model.named_parameters())

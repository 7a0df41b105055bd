"""A model that is deleted is freed, and counts beside no other one."""

from __future__ import annotations

import gc
import weakref

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.beside import process_ledger  # noqa: E402
from schedsim.validation.measure import storage_bytes  # noqa: E402
from tiers import slow_where  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm  # noqa: E402

import schedsim  # noqa: E402

LINEAR = nn.Linear(24, 24)
WAYS = ("backend", "in place")


class Breaking(nn.Module):
    """Two changed layers, with a graph for each."""

    def __init__(self, change):
        super().__init__()
        self.first, self.second = (change(nn.Linear(24, 24)) for _ in range(2))

    def forward(self, x):
        x = self.first(x).sigmoid()
        torch._dynamo.graph_break()
        return self.second(x)


def trained(change, way, **options):
    """Weak references to a model of changed layers that was trained, and to its layers."""
    model = Breaking(change)
    x, options = torch.randn(16, 24), {"budget": "10MB", "effort": 0.1, **options}
    if way == "in place":
        step = schedsim.rematerialize(model, x, in_place=True, **options)
    else:
        step = torch.compile(model, backend="schedsim", options=options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        step(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [weakref.ref(it) for it in model.modules()]


@pytest.mark.parametrize(
    ("change", "way"),
    slow_where(
        [(change, way) for change in (weight_norm, spectral_norm, orthogonal) for way in WAYS],
        lambda case: case != (weight_norm, "backend"),
    ),
)
def test_one_of_parametrized_layers(change, way):
    """Each layer has a class of its own, whose property holds it: a graph must not."""
    assert all(it() is None for it in _collected(trained(change, way)))
    other = nn.Linear(24, 8)
    options = {"budget": "10MB", "effort": 0.1}
    torch.compile(other, backend="schedsim", options=options)(torch.randn(4, 24)).sum().backward()
    held = sum(sum(it.held.fixed_by_place().values()) for it in process_ledger._members)
    own = storage_bytes([*other.parameters()])
    assert own <= held < own + storage_bytes([*LINEAR.parameters()])


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_one_of_parametrized_layers_compiled(way):
    assert all(it() is None for it in _collected(trained(weight_norm, way, compile=True)))


def _collected(found):
    gc.collect()
    return found

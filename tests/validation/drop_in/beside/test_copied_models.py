"""Copies of models with a budget, which have none."""

from __future__ import annotations

import copy
import io
import pickle
import warnings

import pytest
import torch
from schedsim.validation.drop_in.beside.copied_models import CopiedModels
from schedsim.validation.guards.plan_variants import PlainStepWarning
from torch import nn

import schedsim


class Layers(nn.Module):
    """Two layers."""

    def __init__(self, width=4):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, x):
        return self.layers(x)


def step(model, rate=0.1):
    """A step of a loop."""
    optimizer = torch.optim.SGD(model.parameters(), rate)
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    return optimizer


def copies_beside(model, *made, is_known=lambda _: False):
    found = CopiedModels(is_known)
    found.gets_budget(model)
    found.gives(model)
    for one in made:
        found.is_made(one)
    return found


def test_a_copy_that_is_trained_is_told_of_once():
    model = Layers()
    twin = copy.deepcopy(model)
    copies = copies_beside(model, twin, twin.layers, copy.deepcopy(model))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copies.is_stepped(step(model))
        copies.is_stepped(step(Layers()))
        copies.is_stepped(step(twin, rate=0.0))
    with pytest.warns(PlainStepWarning, match="a copy of Layers"):
        copies.is_stepped(step(twin))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copies.is_stepped(step(twin))
        copies.is_made(copy.deepcopy(model))


def test_copies_of_models_without_a_budget_need_no_line():
    copies, model, other = CopiedModels(lambda _: False), Layers(), Layers()
    copies.gets_budget(model)
    copies.gives(other)
    copies.is_made(twin := copy.deepcopy(other))
    copies.loses_budget(model)
    copies.gives(model)
    copies.is_made(copy.deepcopy(model))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copies.is_stepped(step(twin))


@pytest.mark.parametrize("kind", ["has a budget", "of another size", "made before"])
def test_others_need_no_line(kind):
    model, twin = Layers(), Layers(8 if kind == "of another size" else 4)
    made = () if kind == "made before" else (twin,)
    copies = copies_beside(model, *made, is_known=lambda _: kind == "has a budget")
    twin.forward = lambda x: sum(it.sum() for it in twin.parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copies.is_stepped(step(twin))


def saved(model):
    """`model` as another one from a file."""
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)), saved]
)
@pytest.mark.parametrize("way", ["in place", "backend"])
def test_a_loop_that_goes_on_with_a_copy_is_told(copied, way):
    torch.manual_seed(0)
    model = copied(Layers())  # one of a copy that has no budget by then
    if way == "in place":
        run = schedsim.rematerialize(model, (torch.randn(8, 4),), "1MB", in_place=True, effort=0.1)
    else:
        run = torch.compile(model, backend="schedsim", options={"budget": "1MB", "effort": 0.1})
    with warnings.catch_warnings():
        warnings.simplefilter("error", PlainStepWarning)
        for _ in range(2):
            step(run)
        twin = copied(model)
        with torch.no_grad():
            twin(torch.randn(8, 4))
    with pytest.warns(PlainStepWarning, match="a copy of Layers"):
        step(twin)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PlainStepWarning)
        step(twin)

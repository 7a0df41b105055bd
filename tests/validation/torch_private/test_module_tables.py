"""A module's own tables."""

from __future__ import annotations

import copy
import pickle

import torch
from schedsim.validation.torch_private.module_tables import (
    AnyBatchNorm,
    attributes_of,
    buffers_of,
    call_as_itself,
    call_instead,
    children_of,
    gradient_hooks,
    parameters_of,
    replacement_of,
    set_buffers,
    step_hooks,
    tables_of,
)
from torch import nn


def test_tables_are_the_module_s_own():
    """Writing to them is seen by the module."""
    norm = nn.BatchNorm2d(3)
    assert isinstance(norm, AnyBatchNorm)
    assert list(parameters_of(norm)) == ["weight", "bias"]
    buffers_of(norm)["running_mean"] = torch.ones(3)
    assert norm.running_mean.sum() == 3
    set_buffers(norm, {**buffers_of(norm), "running_mean": torch.zeros(3)})
    assert norm.running_mean.sum() == 0
    shared = nn.Linear(1, 1)
    assert list(children_of(nn.Sequential(shared, shared))) == ["0", "1"]
    other = nn.Module()
    other.__dict__.update(tables_of(norm))
    assert other.state_dict().keys() == norm.state_dict().keys()


def test_hooks_of_gradients_are_found():
    """On the gradient, and after it was accumulated."""
    one, two, none = (nn.Parameter(torch.ones(1)) for _ in range(3))
    one.register_hook(lambda grad: grad)
    two.register_post_accumulate_grad_hook(lambda p: None)
    assert [gradient_hooks(p) for p in (one, two, none)] == [True, True, False]
    assert len(step_hooks(two)) == 1
    assert not step_hooks(one)


def test_a_call_is_replaced_and_left_behind():
    """By copies and pickles; hooks are of the own call."""
    net = nn.Linear(1, 1)
    net.register_forward_hook(lambda module, given, out: out + 1)
    expected = net(torch.ones(1))
    call_instead(net, lambda *given: "another")
    assert net(torch.ones(1)) == "another"
    assert torch.equal(call_as_itself(net)(torch.ones(1)), expected)
    assert replacement_of(copy.deepcopy(net)) is None
    net._forward_hooks.clear()
    assert replacement_of(pickle.loads(pickle.dumps(net))) is None
    call_instead(net, None)
    assert replacement_of(net) is None


def test_tensors_that_modules_have_as_attributes():
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    assert attributes_of(model) == []
    model[1].kept = torch.ones(2)
    [found] = attributes_of(model)
    assert found is model[1].kept

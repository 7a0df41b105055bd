"""Code between forward and backward that some steps alone run."""

from __future__ import annotations

import warnings

import pytest
import torch
from schedsim.validation.drop_in.beside.code_between import CodeBetween
from schedsim.validation.guards.plan_variants import PlainStepWarning
from torch import nn

import schedsim

X = torch.ones(64, 64, requires_grad=True)


def looked(between, is_measured, front=0, behind=0):
    """What a step's first backward finds, with so many results more around its graph."""
    found = []

    class Graph(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            found.append(between.look("a kind of step", is_measured=is_measured))
            return gradient

    between.step_begins()
    loss = sum((X + 1).view(-1).sum() for _ in range(front)) + Graph.apply(X).sum()
    for _ in range(behind):
        loss = loss + (X * 2).t().sum()
    loss.backward()
    return found[0]


def test_nodes_tell_of_code_that_no_measured_step_has_run():
    between = CodeBetween()
    assert looked(between, False, behind=3) is None  # nothing is known to compare with
    assert looked(between, True) is None
    assert looked(between, False) is None
    now, known = looked(between, False, behind=1)
    assert X.nbytes <= now.all_bytes - known.all_bytes < 1.1 * X.nbytes  # views take nothing
    assert now.front_bytes == known.front_bytes  # it goes before the graph's backward
    assert looked(between, False, behind=1) is None


def test_what_was_made_in_front_of_the_graph_goes_behind_its_backward():
    between = CodeBetween()
    looked(between, True)
    now, known = looked(between, False, front=2)
    assert now.front_bytes - known.front_bytes >= 2 * X.nbytes
    assert looked(between, True, front=2) is None
    assert looked(between, False, front=2) is None
    assert looked(between, False, front=1, behind=1) is None


def trained(step, plain, rows, calls):
    """Steps of a loop, in some of which the plain model is called on so many rows."""
    x, target = torch.randn(256, 32), torch.randn(256, 16)
    optimizer = torch.optim.Adam(plain.parameters())
    for k in range(8):
        loss = nn.functional.mse_loss(step(x), target)
        if k in calls:
            loss = loss + nn.functional.mse_loss(plain(x[:rows] + 0.1), target[:rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "is_told"), [(128, True), (2, False)])
def test_a_plain_call_in_some_steps_alone_is_told_of_where_it_exceeds(rows, is_told):
    torch.manual_seed(0)
    layers = [it for _ in range(6) for it in (nn.Linear(64, 64), nn.GELU())]
    model = nn.Sequential(nn.Linear(32, 64), *layers, nn.Linear(64, 16))
    options = {"budget": 1_200_000, "effort": 0.1, "extra_bytes": 2 * 256 * 16 * 4}
    step = torch.compile(model, backend="schedsim", options=options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PlainStepWarning)
        trained(step, model, rows, {5})
    lines = [str(it.message) for it in caught if issubclass(it.category, PlainStepWarning)]
    assert any("code between forward and backward" in line for line in lines) == is_told
    assert len(lines) == is_told
    assert schedsim.validation.drop_in.backend.session_of(options).budget_bytes == 1_200_000

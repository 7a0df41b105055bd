"""Optimizers whose closure runs forwards and backwards several times a step."""

from __future__ import annotations

import gc
import re

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.beside.closure_steps import bytes_in_step, growing_bytes  # noqa: E402
from schedsim.validation.drop_in.beside.held_state import HeldState  # noqa: E402
from schedsim.validation.drop_in.drop_in_options import DropInOptions  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim.errors import InfeasibleBudgetError  # noqa: E402


def test_it_grows_up_to_its_history():
    weight = nn.Parameter(torch.ones(10))
    optimizer = torch.optim.LBFGS([weight], history_size=4, max_iter=3)
    assert bytes_in_step(optimizer) == 0
    before = growing_bytes(optimizer)
    for _ in range(4):
        optimizer.step(lambda: _gradients(optimizer, weight))
    assert before - growing_bytes(optimizer) >= 4 * 2 * 40
    assert bytes_in_step(optimizer) >= 4 * 2 * 40
    assert growing_bytes(torch.optim.SGD([weight])) == 0


def _gradients(optimizer, weight):
    optimizer.zero_grad()
    loss = (weight - torch.arange(10)).pow(4).mean()
    loss.backward()
    return loss


def net(width=16, depth=5):
    """Layers, a batch and targets."""
    torch.manual_seed(0)
    layers = [it for _ in range(depth) for it in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*layers), torch.randn(256, width), torch.randn(256, width)


def train(budget, num_steps=8, history=20):
    """The losses of a loop with L-BFGS, and the model."""
    torch._dynamo.reset()
    model, x, target = net()
    if budget is not None:
        schedsim.rematerialize(
            model, x, budget, in_place=True, effort=0.1, extra_bytes=target.nbytes
        )
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, history_size=history)

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), target)
        loss.backward()
        return loss

    return [optimizer.step(closure).item() for _ in range(num_steps)], model


@pytest.mark.slow
def test_a_refusal_names_a_budget_with_room_for_the_whole_history():
    """The history grows in every closure: each refusal would name a budget that the next needs."""
    losses, _ = train(None)
    with pytest.raises(InfeasibleBudgetError) as refused:
        train(300_000)
    assert "history" in refused.value.hint
    assert "0 B are the history" not in refused.value.hint
    assert "states of Adam" not in refused.value.hint
    budget = int(re.search(r"budget=(\d+)", refused.value.hint)[1])
    del refused  # with the frames of that try, whose history is in memory
    gc.collect()
    found, _ = train(budget)
    assert found == losses


@pytest.mark.slow
@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_all_that_is_there_in_a_closure_is_counted(search):
    """What a running step has made is not in the optimizer's own table yet."""
    gc.collect()
    gc.freeze()  # what other tests have left is looked at no more, here and later
    weight, seen = nn.Parameter(torch.ones(997)), []
    held = HeldState(DropInOptions(budget=1))
    held.see([weight])
    optimizer = torch.optim.LBFGS([weight], line_search_fn=search, max_iter=5, history_size=3)

    def closure():
        weight.grad = None
        size = weight.nbytes
        there = [t for t in gc.get_objects() if type(t) in (torch.Tensor, nn.Parameter)]
        found = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in there}
        seen.append((sum(it for it in found.values() if it == size), held.total_bytes))
        loss = (weight - torch.arange(997) / 100).pow(4).mean()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    assert len(seen) > 9
    assert all(there <= counted for there, counted in seen)
    assert max(counted for _, counted in seen) <= 1.5 * max(there for there, _ in seen)

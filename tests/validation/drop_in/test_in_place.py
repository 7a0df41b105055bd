"""A model that stays itself."""

from __future__ import annotations

import copy
import logging
import pickle
import warnings

import pytest

torch = pytest.importorskip("torch")

from in_place_models import Net  # noqa: E402
from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from tiers import slow_where  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.checkpoint.state_dict import get_state_dict  # noqa: E402

import schedsim  # noqa: E402
from schedsim.errors import (  # noqa: E402
    InfeasibleBudgetError,
    SchedsimError,
)

LOGGER = logging.getLogger("talks")


def loop(model, batch, num_steps=3, change=None):
    """A loop as users write it: the loss is outside, gradients accumulate over two steps."""
    x, target = batch
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(3)
    losses = []
    for k in range(num_steps):
        for _ in range(2):
            if change is not None:
                change(model, k)
            output = model(x)
            loss = nn.functional.mse_loss(output["hidden"], target) + output["mean"].square().sum()
            loss.backward()
            losses.append(loss.item())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return losses


def measured(model, batch, run):
    [reading] = AllocatorMeter().read(run)
    return reading.peak_bytes + storage_bytes([*model.parameters(), *batch]), reading.result


def test_the_loop_is_the_same_within_the_budget(batch):
    """Peak measured, losses and parameters equal to the bit, and the model is what it was."""
    model, plain = Net(), Net()
    plain.load_state_dict(model.state_dict())
    first = copy.deepcopy(model.state_dict())
    most, expected = measured(plain, batch, lambda: loop(plain, batch))
    budget = int(0.8 * most)
    same = schedsim.rematerialize(model, (batch[0],), budget, in_place=True, effort=0.5)
    assert same is model
    assert type(model) is Net
    assert model.state_dict().keys() == plain.state_dict().keys()
    assert all(map(torch.equal, model.parameters(), first.values()))
    assert all(p.grad is None for p in model.parameters())
    assert "to the bit" in schedsim.drop_in_report(model)
    loop(model, batch)  # the loss and the optimizer are seen
    model.load_state_dict(first)
    peak, found = measured(model, batch, lambda: loop(model, batch))
    assert found == expected
    assert peak <= budget
    assert all(map(torch.equal, model.parameters(), plain.parameters()))
    (part,) = session_in(model).parts
    assert max(part.run_counts.values()) > 1
    twin = copy.deepcopy(model)  # a copy is a plain model
    assert twin._compiled_call_impl is None
    pickle.loads(pickle.dumps(model))
    model.eval()
    assert torch.equal(model(batch[0])["hidden"], twin.eval()(batch[0])["hidden"])
    schedsim.restore(model)
    with pytest.raises(SchedsimError, match="no budget"):
        schedsim.drop_in_report(model)


@pytest.mark.slow
def test_what_the_loop_changes_is_followed(batch):
    """An annealed attribute and a hook that is registered later."""

    def change(model, k):
        if k == 1:
            model.scale = 0.5
        if k == 2 and not model.layers[0]._forward_hooks:
            model.layers[0].register_forward_hook(lambda _, __, output: output * 2)

    model, plain = Net(depth=3), Net(depth=3)
    plain.load_state_dict(model.state_dict())
    expected = loop(plain, batch, change=change)
    schedsim.rematerialize(model, batch[0], "90%", in_place=True, check="never", effort=0.2)
    assert loop(model, batch, change=change) == expected


def test_wrong_use_is_refused(batch):
    """One line each."""
    model = Net(depth=2)
    with pytest.raises(SchedsimError, match="loss= is not for a model in place"):
        schedsim.rematerialize(model, batch, "80%", nn.functional.mse_loss, in_place=True)
    with pytest.raises(SchedsimError, match="chunk="):
        schedsim.rematerialize(model, batch[0], "80%", chunk="auto", in_place=True)
    with pytest.raises(InfeasibleBudgetError, match="least"):
        schedsim.rematerialize(model, batch[0], 20_000, in_place=True)
    assert model._compiled_call_impl is None
    schedsim.rematerialize(model, batch[0], "90%", in_place=True, check="never", effort=0.2)
    with pytest.raises(SchedsimError, match="has a budget already"):
        schedsim.rematerialize(model, batch[0], "80%", in_place=True)


@pytest.mark.slow
def test_what_the_loop_holds_during_backward_is_counted(batch):
    """A loss, and what is logged of the outputs."""

    def steps(model):
        for _ in range(3):
            output = model(batch[0])
            logged = [output["hidden"].detach() * k for k in range(4)]
            (output["hidden"] - batch[1]).square().mean().backward()
            logged.clear()
            model.zero_grad()

    model, plain = Net(width=32, depth=8), Net(width=32, depth=8)
    most, _ = measured(plain, batch, lambda: steps(plain))
    budget = int(0.75 * most)
    extra = storage_bytes([batch[1]])
    schedsim.rematerialize(model, batch[0], budget, in_place=True, effort=0.3, extra_bytes=extra)
    steps(model)
    peak, _ = measured(model, batch, lambda: steps(model))
    assert peak <= budget
    resident = storage_bytes([*model.parameters()]) + extra
    assert session_in(model).plans.known.plan.static_bytes >= resident + 4 * batch[0].nbytes


@pytest.mark.slow
def test_a_share_is_one_of_the_largest_size_told():
    """The first step is short, and a share of its own peak would leave no room for later ones."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8)) for _ in range(4))
    )
    x = torch.randn(4, 3, 8)
    schedsim.rematerialize(model, x, "60%", in_place=True, largest={1: 256})
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for length in (3, 256, 17):
        model(torch.randn(4, length, 8)).square().mean().backward()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs  # open from the start
    report = schedsim.drop_in_report(model)
    budget = session_in(model).plans.known.budget_bytes
    least = 4 * 256 * (64 + 8) * 4 * 4 * 0.6  # what layers at the largest size keep
    assert budget > least, report


@pytest.mark.slow
def test_a_model_that_is_converted_is_within_its_budget():
    """Its parameters stay the same objects, of twice the bytes."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(128, 128), nn.Tanh(), nn.Softsign()) for _ in range(8)]
    model, x = nn.Sequential(*blocks), torch.randn(128, 128)
    budget = 4 * storage_bytes([*model.parameters()]) + 1_500_000
    schedsim.rematerialize(model, x, budget, in_place=True, effort=0.1)

    def step():
        for parameter in model.parameters():
            parameter.grad = None
        model(x).square().mean().backward()

    for _ in range(2):
        step()
    model.double()
    x = x.double()
    for _ in range(4):
        step()
    for parameter in model.parameters():
        parameter.grad = None
    peak, _ = measured(model, (x,), step)
    assert 0.85 * budget < peak <= budget, schedsim.drop_in_report(model)


class Coder(torch.nn.Module):
    """Whose loop may call its halves, and never itself."""

    def __init__(self):
        super().__init__()
        self.coder, self.decoder = torch.nn.Linear(4, 2), torch.nn.Linear(2, 4)

    def encode(self, x):
        return torch.tanh(self.coder(x))

    def forward(self, x):
        return self.decoder(self.encode(x))


def coder_to_train() -> tuple[Coder, torch.Tensor, torch.optim.Optimizer]:
    """A model with room for all that it saves, its input and its optimizer."""
    torch._dynamo.reset()
    model, x = Coder(), torch.randn(8, 4)
    schedsim.rematerialize(model, x, "100%", in_place=True, effort=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, x, optimizer


@pytest.mark.slow
@pytest.mark.parametrize("calls_itself", [True, False])
def test_a_model_that_is_trained_and_not_called_is_told_of(calls_itself):
    """A loop that calls ``encode`` and ``decode`` ran as it is in silence."""
    model, x, optimizer = coder_to_train()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            (model(x) if calls_itself else model.decoder(model.encode(x))).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    told = [str(it.message) for it in said if "nobody has called" in str(it.message)]
    assert len(told) == (0 if calls_itself else 1)


def test_a_step_without_gradients_is_no_training():
    """As of a second model that comes into the loop later."""
    _model, _x, optimizer = coder_to_train()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        optimizer.step()
    assert not [it for it in said if "nobody has called" in str(it.message)]


@pytest.mark.slow
def test_a_model_that_is_called_in_a_closure_alone_is_not_told_of():
    """The line came as the optimizer's first step began, before it called its closure."""
    model, x, optimizer = coder_to_train()

    def closure():
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        return loss

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        optimizer.step(closure)
    assert not [it for it in said if "nobody has called" in str(it.message)]


@pytest.mark.parametrize(
    "optimizer_class",
    slow_where([torch.optim.AdamW, torch.optim.SGD], lambda it: it is torch.optim.SGD),
)
def test_a_step_that_only_makes_an_optimizers_state_is_no_training(optimizer_class):
    """As ``get_state_dict`` steps, before a run goes on from a checkpoint, or whenever it saves."""
    model, x, _optimizer = coder_to_train()
    optimizer = optimizer_class(model.parameters(), lr=0.1)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            get_state_dict(model, optimizer)
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        get_state_dict(model, optimizer)
    told = [str(it.message) for it in said]
    assert not [it for it in told if "nobody has called" in it or "no graph has made" in it]

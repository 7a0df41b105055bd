"""A model that trains by a schedule: an ordinary module in an ordinary loop."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from rank_processes import run_ranks  # noqa: E402
from replayed_blocks import recompute_everything  # noqa: E402
from schedsim.validation.block_level import capture_chain  # noqa: E402
from schedsim.validation.block_level.scheduled_blocks import (  # noqa: E402
    loss_of,
    plain_loss,
    split_inputs,
)
from schedsim.validation.models import build_model  # noqa: E402
from small_models import SMALL, outcome  # noqa: E402
from torch import nn  # noqa: E402

from schedsim.errors import UnsupportedError  # noqa: E402


def test_three_steps_of_an_optimizer_are_those_of_the_plain_model():
    """AdamW on GPT-2 with dropout, and two micro-batches accumulated a step.

    Not tied: a shared weight gets its gradients one by one, where autograd adds them up first,
    which differs in the last bit once there is something to add to.
    """
    name, options = SMALL["gpt2"]
    options = {**options, "tied": False}
    weights = []
    for scheduled in (False, True):
        model, inputs, loss = build_model(name, **options)
        step = lambda model=model, inputs=inputs, loss=loss: loss(model(*inputs))  # noqa: E731
        if scheduled:
            captured = capture_chain(model, inputs, loss, rounds=0)
            module = captured.module(recompute_everything(captured.chain))
            step = lambda module=module, inputs=inputs: module(*inputs)  # noqa: E731
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        torch.manual_seed(0)
        for _ in range(3):
            optimizer.zero_grad()
            for _ in range(2):
                (step() / 2).backward()
            optimizer.step()
        weights.append([p.detach() for p in model.parameters()])
    assert all(map(torch.equal, *weights))


def test_without_gradients_the_model_is_simply_called():
    """Evaluation costs no replay; a step that is never finished holds nothing back."""
    model, inputs, loss = build_model("mlp", layers=3, hidden=8, batch=4)
    captured = capture_chain(model, inputs, loss, rounds=0)
    module = captured.module(recompute_everything(captured.chain))
    with torch.no_grad():
        assert torch.equal(module(*inputs), loss(model(*inputs)))
    abandoned = module(*inputs)
    del abandoned
    value = module(*inputs)
    value.backward(retain_graph=True)
    with pytest.raises(Exception, match="run backward already"):
        value.backward()


def test_targets_may_be_inputs():
    """loss(output, target): the target comes last among the inputs, another one each step."""
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))
    x, target = torch.randn(4, 8), torch.randint(8, (4,))
    loss = nn.functional.cross_entropy
    captured = capture_chain(model, (x, target), loss, rounds=0)
    module = captured.module(recompute_everything(captured.chain))
    plain = outcome(model, lambda: loss(model(x), target))
    assert all(map(torch.equal, plain, outcome(model, lambda: module(x, target))))
    other = (target + 1) % 8
    plain = outcome(model, lambda: loss(model(x), other))
    assert all(map(torch.equal, plain, outcome(model, lambda: module(x, other))))


def _ddp_worker(rank):
    name, options = SMALL["gpt2"]
    model, _, loss = build_model(name, **{**options, "tied": False, "dropout": 0.0})
    torch.manual_seed(rank)
    ids = torch.randint(500, (4, 64))
    plain = nn.parallel.DistributedDataParallel(copy.deepcopy(model))
    loss(plain(ids)).backward()
    captured = capture_chain(model, (ids,), loss, rounds=0)
    module = captured.module(recompute_everything(captured.chain))
    wrapped = nn.parallel.DistributedDataParallel(module)
    for _ in range(2):  # the reducer must be ready again after a step
        model.zero_grad()
        wrapped(ids).backward()
    pairs = zip(plain.parameters(), model.parameters(), strict=True)
    return all(torch.equal(a.grad, b.grad) for a, b in pairs)


@pytest.mark.slow
def test_two_processes_average_their_gradients():
    """DistributedDataParallel over gloo: the same averages as around the plain model."""
    assert run_ranks(_ddp_worker, 2) == [True, True]


def test_an_input_that_wants_a_gradient_is_refused():
    """Which a schedule does not give."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    captured = capture_chain(model, torch.randn(2, 4), lambda y: y.sum(), rounds=0)
    module = captured.module(recompute_everything(captured.chain))
    with pytest.raises(UnsupportedError, match="input requires a gradient") as caught:
        module(torch.randn(2, 4, requires_grad=True))
    assert "detach" in caught.value.hint


def test_the_last_inputs_are_the_losses():
    """Keywords are the model's."""
    step = split_inputs((1, 2, 3), {"k": 4}, 2)
    assert (step.arguments, step.keywords, step.extra) == ((1,), {"k": 4}, (2, 3))
    model = nn.Linear(2, 1)
    x, target = torch.randn(3, 2), torch.randn(3, 1)
    found = plain_loss(model, nn.functional.mse_loss, (x, target), {}, 1)
    torch.testing.assert_close(found, nn.functional.mse_loss(model(x), target))


def test_a_model_may_give_its_own_loss():
    """A scalar, or something that has one; anything else is refused by its class."""

    class Output:
        loss = torch.ones(())

    assert loss_of(Output()) is Output.loss
    assert loss_of(Output.loss) is Output.loss
    with pytest.raises(UnsupportedError, match="returns a dict without a loss"):
        loss_of({"loss": Output.loss})

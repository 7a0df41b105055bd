"""The scheduled module is an ordinary one: training loops, autocast, DDP, and its refusals."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from chains import random_schedule
from rank_processes import run_ranks
from schedsim.validation import autocasts
from schedsim.validation.capture import capture
from step_models import DropoutMLP, TinyGPT, make_step, token_loss
from torch import nn

from schedsim import Op, Schedule
from schedsim.errors import InvalidScheduleError, SchedsimError, UnsupportedError


def scheduled(name="mlp", seed=0):
    model, inputs, loss = make_step(name)
    captured = capture(model, inputs, loss)
    schedule = random_schedule(np.random.default_rng(seed), captured.graph)
    return captured, captured.module(schedule), inputs


def train(model, step, num_steps, accumulate=1):
    """Losses of AdamW on `step`, and the parameters after it."""
    torch.manual_seed(3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(num_steps):
        optimizer.zero_grad()
        for _ in range(accumulate):
            loss = step()
            (loss / accumulate).backward()
            losses.append(loss.detach().clone())
        optimizer.step()
    return [*losses, *(p.detach().clone() for p in model.parameters())]


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("name", ["mlp", "gpt", "resnet"])
def test_training_is_the_plain_models(name, accumulate):
    """Two optimizer steps, with and without gradient accumulation, bit for bit."""
    captured, module, inputs = scheduled(name)
    plain = copy.deepcopy(captured.model)
    expected = train(plain, lambda: captured.loss(plain(inputs[0]), inputs[1]), 2, accumulate)
    got = train(module, lambda: module(*inputs), 2, accumulate)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_two_losses_at_once():
    """Two forwards before the backwards: each step has its own state."""
    captured, module, inputs = scheduled()
    plain = copy.deepcopy(captured.model)
    results = []
    for step in (
        lambda: module(*inputs),
        lambda: captured.loss(plain(inputs[0]), inputs[1]),
    ):
        torch.manual_seed(5)
        (step() + 2 * step()).backward()
        results.append(None)
    for mine, its in zip(captured.model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(mine.grad, its.grad, rtol=1e-6)


def test_autocast_is_part_of_the_graph():
    """Under bf16 autocast, repeats give the bits of the store-all schedule; without it a refusal.

    With dropout the plain model differs in rounding, as eager dropout is another kernel.
    """
    torch.manual_seed(0)
    model = TinyGPT(dropout=0.0)
    inputs = torch.randint(0, 61, (2, 16)), torch.randint(0, 61, (2, 16))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        captured = capture(model, inputs, token_loss)
    assert any("to_copy" in name for name in captured.graph.op_names)
    grads = []
    for seed in (None, 0, 1):
        schedule = Schedule.store_all(captured.graph)
        if seed is not None:
            schedule = random_schedule(np.random.default_rng(seed), captured.graph)
        module = captured.module(schedule)
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = module(*inputs)
        loss.backward()
        grads.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
    model.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = token_loss(model(inputs[0]), inputs[1])
    loss.backward()
    grads.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
    for other in grads[1:]:
        assert all(torch.equal(a, b) for a, b in zip(grads[0], other, strict=True))
    with pytest.raises(SchedsimError, match="runs outside of autocast, and was captured within"):
        module(*inputs)


def test_autocast_of_every_device_is_part_of_the_graph(monkeypatch):
    """A step of the CPU may call a kernel of another device, where its autocast casts."""
    monkeypatch.setattr(autocasts, "_kinds", lambda: ("cpu", "cuda"))
    model, inputs, loss = make_step("mlp")
    captured = capture(model, inputs, loss)
    module = captured.module(Schedule.store_all(captured.graph))
    module(*inputs).backward()
    torch.set_autocast_enabled("cuda", True)
    try:
        with pytest.raises(SchedsimError, match=r"within autocast \(cuda to float16\), and was"):
            module(*inputs)
    finally:
        torch.set_autocast_enabled("cuda", False)


@pytest.mark.parametrize("name", ["mlp", "gpt"])
def test_autocast_with_dropout_is_near_the_plain_model(name):
    """Each gradient within 2 % of its norm: a dropout kernel that rounds otherwise in bf16."""
    model, inputs, loss = make_step(name)
    steps = {}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        captured = capture(model, inputs, loss)
        scheduled_module = captured.module(Schedule.store_all(captured.graph))
        runs = {
            "scheduled": lambda: scheduled_module(*inputs),
            "plain": lambda: loss(model(inputs[0]), inputs[1]),
        }
    for which, run in runs.items():
        torch.manual_seed(1)
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = run()
        value.backward()
        steps[which] = value.detach(), [p.grad.clone() for p in model.parameters()]
    torch.testing.assert_close(steps["scheduled"][0], steps["plain"][0], rtol=1e-5, atol=0)
    for mine, its in zip(steps["scheduled"][1], steps["plain"][1], strict=True):
        assert (mine - its).norm() <= 0.02 * its.norm()


def _parallel(rank):
    captured, module, inputs = scheduled()
    parallel = nn.parallel.DistributedDataParallel(module)
    torch.manual_seed(2)
    parallel(*inputs).backward()
    got = [p.grad.clone() for p in captured.model.parameters()]
    captured.model.zero_grad()
    torch.manual_seed(2)
    captured.loss(captured.model(inputs[0]), inputs[1]).backward()
    expected = [p.grad for p in captured.model.parameters()]
    return all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


@pytest.mark.slow
def test_distributed_data_parallel():
    """A world of one: hooks see every gradient."""
    assert run_ranks(_parallel, 1) == [True]


def test_evaluation_runs_the_plain_model():
    """In another mode than the captured one, and without gradients, nothing is scheduled."""
    captured, module, inputs = scheduled()
    module.eval()
    assert torch.equal(module(*inputs), captured.loss(captured.model(inputs[0]), inputs[1]))
    module.train()
    with torch.no_grad():
        assert not module(*inputs).requires_grad


def test_inputs_that_need_gradients_and_keyword_inputs():
    """Both reach the model, and gradients come back."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x, *, scale, options=None):
            return self.linear(x * scale) * (options or {}).get("gain", 1.0)

    model, x, scale = Scaled(), torch.randn(3, 4, requires_grad=True), torch.randn(3, 1)
    kwargs = {"scale": scale, "options": {"gain": 2.0}}

    def loss(output):
        return output.square().mean()

    captured = capture(model, (x,), loss, kwargs=kwargs)
    module = captured.module(random_schedule(np.random.default_rng(0), captured.graph))
    module(x, **kwargs).backward()
    got = x.grad.clone()
    x.grad = None
    loss(model(x, **kwargs)).backward()
    assert torch.equal(got, x.grad)
    with pytest.raises(SchedsimError, match="captured"):
        module(x, scale=scale, options={"gain": 3.0})


def test_gradients_in_the_form_that_autograd_keeps():
    """Expanded, shared and transposed gradients become tensors of their own, and are counted."""

    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Parameter(torch.randn(3, 5)), nn.Parameter(torch.randn(3, 5))
            self.c = nn.Parameter(torch.randn(5, 3).t())

        def forward(self, x):
            return (self.a + self.b).sum() + (self.c * x).sum() + self.a.sum()

    model, x = Odd(), torch.randn(3, 5)
    captured = capture(model, (x,))
    assert sum("lay_out" in name for name in captured.graph.op_names) >= 2
    captured.module(Schedule.store_all(captured.graph))(x).backward()
    got = [p.grad.clone() for p in model.parameters()]
    assert len({p.grad.untyped_storage().data_ptr() for p in model.parameters()}) == 3
    model.zero_grad()
    model(x).backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(got, model.parameters(), strict=True))


class TestRefusals:
    """Misuse is answered with what is wrong and what to do."""

    def test_illegal_schedule(self):
        captured, _, _ = scheduled()
        names = list(captured.graph.op_names)
        with pytest.raises(InvalidScheduleError, match="never runs"):
            captured.module(Schedule.from_names(names[:-1]))

    def test_other_shape(self):
        _, module, (x, y) = scheduled()
        with pytest.raises(SchedsimError, match=r"input 0 .* shape \(8, 32\)"):
            module(x[:8], y[:8])

    def test_second_backward(self):
        _, module, inputs = scheduled()
        loss = module(*inputs)
        loss.backward(retain_graph=True)
        with pytest.raises(SchedsimError, match="runs once"):
            loss.backward()

    def test_parameter_changed_before_backward(self):
        captured, module, inputs = scheduled()
        loss = module(*inputs)
        with torch.no_grad():
            captured.model.layers[1].weight.add_(1)
        with pytest.raises(SchedsimError, match=r"layers\.1\.weight was changed in place"):
            loss.backward()

    def test_model_without_memory(self):
        with torch.device("meta"):
            model, inputs = DropoutMLP(), (torch.zeros(4, 32), torch.zeros(4, 32))
        captured = capture(model, inputs, F.mse_loss)
        assert isinstance(captured.graph.ops[0], Op)
        with pytest.raises(UnsupportedError, match="no memory"):
            captured.module(Schedule.store_all(captured.graph))

"""A step noted down in one run is the program that torch's own export gives."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.capture.capture import record_step  # noqa: E402
from schedsim.validation.capture.fronts import trace, trace_once  # noqa: E402
from schedsim.validation.capture.program_builder import build_program  # noqa: E402
from schedsim.validation.capture.skeleton import make_skeleton  # noqa: E402
from schedsim.validation.guards.asking import Expect  # noqa: E402
from schedsim.validation.torch_private import recorded_joints  # noqa: E402
from schedsim.validation.torch_private.fake_tensors import fake_mode  # noqa: E402
from schedsim.validation.torch_private.recorded_joints import NeedsExport  # noqa: E402
from step_models import make_step  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402


def programs(model, inputs, loss, recorded=None):
    """The program of each way; the first is ``None`` where a step is not noted down."""
    found = []
    for way in (trace_once, trace):
        mode = fake_mode()
        skeleton = make_skeleton(model, inputs, {}, loss, mode, recorded)
        traced = way(skeleton, mode)
        program = traced and build_program(traced, skeleton)
        if program is not None:  # what compares by identity, by content
            held = {value: tensor.tolist() for value, tensor in program.constants.items()}
            program.constants = held
            for call in program.calls:
                if isinstance(call.target, Expect):
                    call.target = call.target.question
        found.append(program)
    return found


def summed(x):
    return x.sum()


class Square(torch.autograd.Function):
    """A function whose backward is Python."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x + x * gradient


class Mixed(nn.Module):
    """A weight with two names, a part with two names, gradients that are added, a frozen weight."""

    def __init__(self):
        super().__init__()
        self.enter, self.leave = nn.Linear(4, 4), nn.Linear(4, 4)
        self.leave.weight = self.enter.weight
        self.leave.bias.requires_grad_(False)
        self.twice = nn.ModuleList([nn.Linear(4, 4)] * 2)
        self.unused = nn.Parameter(torch.ones(3))
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x):
        x = self.enter(x) + self.shift
        first, second = torch.relu(self.twice[0](x)).chunk(2, -1)
        x = torch.cat((first * x[:, :2], second), -1) + Square.apply(self.twice[1](x))
        with torch.no_grad():
            scale = x.abs().amax()
        x = x / scale + torch.arange(4, dtype=x.dtype)
        return nn.functional.dropout(self.leave(x), 0.5) + x


class InPlace(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.linear, self.change = nn.Linear(4, 4), change

    def forward(self, x):
        return self.change(self.linear(x))


def test_the_program_is_that_of_the_export():
    """Names, arguments, sizes, phases, draws and gradients, op by op."""
    inputs = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4)
    once, exported = programs(Mixed(), inputs, nn.functional.mse_loss)
    assert once is not None
    assert once == exported
    assert sum(call.is_gradient_sum for call in once.calls) > 3
    assert any(call.random for call in once.calls)


@pytest.mark.slow
def test_attention_and_casts():
    """A transformer, under autocast."""
    model, inputs, loss = make_step("gpt")
    with torch.autocast("cpu", torch.bfloat16):
        once, exported = programs(model, inputs, loss)
    assert once is not None
    assert once == exported
    assert torch.bfloat16 in {value.dtype for value in once.values}


def test_arguments_that_are_the_default_are_left_out():
    """Said by the caller or not, they are no argument of the op."""
    model = nn.EmbeddingBag(6, 4, mode="mean", include_last_offset=False, padding_idx=None)
    once, exported = programs(model, (torch.tensor([[1, 2], [3, 3]]),), summed)
    assert once is not None
    assert once == exported


class Changing(nn.Module):
    """Statistics and counts in buffers, twice in one step, and activations in place."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        x = self.norm(self.norm(self.linear(x)).relu_())
        with torch.no_grad():
            self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
            self.count += 1
        y = (x + self.mean).add_(x).div_(self.count).mul_(3)
        return nn.functional.silu(y.sigmoid_() + x, inplace=True)


def test_changes_in_place_are_made_functional():
    """Of buffers and of what the step computes, while nothing else looks at them."""
    once, exported = programs(Changing(), (torch.randn(3, 4),), summed)
    assert once is not None
    assert once == exported
    assert sum(call.name.endswith(".update") for call in once.calls) == 5


class ChangingByAnotherName(nn.Module):
    """Statistics that are changed under another name: `instance_norm` does so, by an alias."""

    def __init__(self):
        super().__init__()
        self.norm = nn.InstanceNorm1d(4, affine=True, track_running_stats=True)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        self.mean.detach().mul_(0.9).add_(x.detach().mean((0, 2)))
        return self.norm(x)


def test_changes_under_another_name_reach_the_buffer():
    """Its layout is the same; the buffer itself is not read again."""
    once, exported = programs(ChangingByAnotherName(), (torch.randn(3, 4, 5),), summed)
    assert once is not None
    assert once == exported
    assert sum(call.name.endswith(".update") for call in once.calls) == 3


TABLE = torch.ones(4)
TAKEN = {
    "a sum of its own": lambda x: x.cumsum_(0),
    "a constant": lambda x: x + torch.tensor([2.0, 1.0, 0.0, 1.0]) * torch.tensor(3.0),
    "a tensor from elsewhere": lambda x: x * TABLE + TABLE.view(2, 2).sum(),
    "a new tensor that is filled": lambda x: x * torch.empty(3, 4).fill_(2).zero_(),
    "a copy": lambda x: torch.empty(3, 4).copy_(x) + torch.empty(3, 4).copy_(x.detach() > 0),
    "draws": lambda x: x * torch.empty(3, 4).bernoulli_() + torch.empty(3, 4).normal_().uniform_(),
    "limits": lambda x: (x + 1).clamp_(0, 1).masked_fill_(x > 0, 2.0) * x,
    "rows": lambda x: x + torch.zeros(3, 4).index_add_(0, torch.tensor([0, 2]), x[:2]),
    "another name that is not read": lambda x: x.detach() is None or x.exp_(),
}


@pytest.mark.parametrize("change", TAKEN)
def test_other_steps_that_are_noted_down(change):
    """Constants, draws, and tensors that are made and then filled."""
    once, exported = programs(InPlace(TAKEN[change]), (torch.randn(3, 4),), summed)
    assert once is not None
    assert once == exported


def test_questions_are_answered_as_in_the_export():
    """A step that asks for values returns the tensors too."""

    def change(x):
        scale = float(x.detach().abs().max().item() >= 0)
        return x * scale if (x.detach() < 1e9).all() else x

    model, inputs = InPlace(change), (torch.randn(3, 4),)
    recorded = record_step(model, summed, inputs, {})
    once, exported = programs(model, inputs, summed, recorded)
    assert once is not None
    assert once == exported
    assert sum("expect" in call.name for call in once.calls) == 2


LEFT = {
    "before a view": lambda x: x.view(-1) + x.relu_().view(-1),
    "to another layout": lambda x: torch.ones(()).expand(3, 4).clone().t().relu_() + x.sum(),
    "through a view": lambda x: x[0].mul_(2) + x,
    "before another name is read": lambda x: torch.stack([x.detach(), x.relu_()]),
    "in its shape": lambda x: (x + 1).unsqueeze_(0),
    "elsewhere": lambda x: x + TABLE.mul_(1),
    "a value": lambda x: x * float(x.detach().sum() > 0),
    "a generator": lambda x: x + torch.rand(4, generator=torch.Generator()),
    "a view": lambda x: x.sum(0, keepdim=True).sum(1).view(1),
    "a checkpoint": lambda x: checkpoint(torch.tanh, x, use_reentrant=False),
}


@pytest.mark.parametrize("change", LEFT)
def test_what_the_export_alone_can(change):
    """Steps that need more than a note of each op are left to it."""
    model, inputs = InPlace(LEFT[change]), (torch.randn(3, 4),)
    mode = fake_mode()
    own = None if change == "a view" else summed
    assert trace_once(make_skeleton(model, inputs, {}, own, mode), mode) is None


def test_the_weights_of_the_module_are_its_own_again():
    """A tied weight has one tensor after a trace, however it ended."""
    mode = fake_mode()
    skeleton = make_skeleton(
        Mixed(), (torch.randn(3, 4),), {}, lambda out: out.unsqueeze_(0).sum(), mode
    )
    model = skeleton.step.model
    before = copy.copy(model.leave._parameters)
    with pytest.raises(NeedsExport, match="unsqueeze_"):
        recorded_joints.record_joint(skeleton.step, skeleton.tensors, mode)
    assert all(before[name] is now for name, now in model.leave._parameters.items())
    assert model.leave.weight is model.enter.weight

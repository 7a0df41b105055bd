"""Loops that change a model in the ways of training recipes: the plain loop to the bit, or refused.

As in ``test_loops``, each runs plainly and within a budget, as a whole step and in place.
"""

from __future__ import annotations

import contextvars
import functools
import math
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402
from changing_loops import (  # noqa: E402
    BATCH,
    NUM,
    WIDTH,
    Block,
    Case,
    Line,
    first_difference,
    of,
)
from tiers import slow_where  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.utils import parametrizations, parametrize, rnn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from schedsim.errors import SchedsimError  # noqa: E402

SMOOTHING = 0.0
SETTINGS = {"scale": 1.0}


def smoothed():
    """A loss with label smoothing that a global says."""

    def loss(y, target):
        return F.cross_entropy(y, target.argmax(1), label_smoothing=SMOOTHING)

    def warm_up(model, k):
        global SMOOTHING
        SMOOTHING = 0.1 * (k // 2)

    return loss, warm_up


class StochasticDepth(Block):
    """Skips itself by torch's generator, at a scheduled rate."""

    def forward(self, x):
        if self.training and torch.rand(()).item() < self.rate:
            return x
        return x + torch.tanh(self.linear(x))


class DropPath(Block):
    """Drops rows of the residual by torch's generator, at a scheduled rate."""

    def forward(self, x):
        keep = torch.empty(len(x), 1).bernoulli_(1.0 - self.rate)
        return x + torch.tanh(self.linear(x)) * keep / (1.0 - self.rate)


def raise_rate(model, k):
    for layer in model.layers:
        layer.rate = 0.2 + 0.2 * (k // 2)


class RampedAverage(Block):
    """A running average whose decay grows with a counter in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(WIDTH))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        y = torch.tanh(self.linear(x))
        with torch.no_grad():
            self.steps += 1
            decay = torch.clamp((1 + self.steps) / (10 + self.steps), max=0.99)
            self.average.mul_(decay).add_(y.mean(0) * (1 - decay))
        return y - self.average


class Clock:
    """The epoch, in an object that is no module."""

    epoch = 0


class Tempered(Block):
    """A softmax whose temperature is a property of an object elsewhere."""

    @property
    def temperature(self):
        return 0.5 + math.exp(-self.clock.epoch)

    def forward(self, x):
        return torch.softmax(self.linear(x) / self.temperature, dim=-1)


def tempered():
    clock = Clock()
    return Line(*(Tempered(clock=clock) for _ in range(NUM)))


def next_epoch(model, k):
    model.layers[0].clock.epoch = k // 2


def normalise(model, k):
    if k == 2:
        parametrizations.weight_norm(model.head)


def normalise_by_power(model, k):
    if k == 2:
        torch.manual_seed(5)
        parametrizations.spectral_norm(model.layers[1].linear)


class Symmetric(nn.Module):
    def forward(self, weight):
        return weight.triu() + weight.triu(1).T


def parametrise(model, k):
    if k == 1:
        parametrize.register_parametrization(model.head, "weight", Symmetric())
    if k == 3:
        parametrize.remove_parametrizations(model.head, "weight")


class Adapted(Block):
    """A linear layer with a low-rank update, which may be merged."""

    def __init__(self):
        super().__init__(merged=False)
        self.linear.weight.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(2, WIDTH) * 0.3)
        self.up = nn.Parameter(torch.randn(WIDTH, 2) * 0.3)

    def merge(self):
        with torch.no_grad():
            self.linear.weight.add_(self.up @ self.down)
            self.up.zero_()
        self.merged = True

    def forward(self, x):
        y = self.linear(x)
        return torch.tanh(y if self.merged else y + x @ self.down.T @ self.up.T)


def merge(model, k):
    if k == 2:
        model.layers[0].merge()


def thaw_in_turn(model, k):
    for i, layer in enumerate(model.layers):
        layer.requires_grad_(i >= 3 - k)


class Checkpointed(Block):
    """Has a switch for checkpoints of its own, as models of transformers do."""

    def inner(self, x):
        return F.dropout(torch.tanh(self.linear(x)), 0.2, self.training)

    def forward(self, x):
        if self.gradient_checkpointing:
            return checkpoint(self.inner, x, use_reentrant=False)
        return self.inner(x)


def toggle_checkpoints(model, k):
    for layer in model.layers:
        layer.gradient_checkpointing = bool(k // 2)


class Mixed(Block):
    """Has a switch for autocast within its forward."""

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.mixed):
            y = torch.tanh(self.linear(x))
        return y.float()


def toggle_mixed(model, k):
    for layer in model.layers:
        layer.mixed = k >= 2


class FreezesNorm(Block):
    """Puts its norm into evaluation from some step on, within forward."""

    def __init__(self):
        super().__init__(frozen=False)
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x):
        self.norm.train(not self.frozen)
        return torch.tanh(self.norm(self.linear(x)))


def freeze_norms(model, k):
    for layer in model.layers:
        layer.frozen = k >= 2


class Normed(Block):
    def __init__(self):
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(WIDTH), nn.Dropout(0.3)

    def forward(self, x):
        return self.drop(torch.tanh(self.norm(self.linear(x))))


def evaluate_one(model, k):
    model.layers[1].train(k < 2)


class Branches(Block):
    """Takes another path for another sign of its data."""

    def forward(self, x):
        if x.mean() > 0:
            return torch.tanh(self.linear(x))
        return torch.relu(self.linear(x)) - 0.5


class Taught(Block):
    """Has a teacher, which the loop moves, and which is read without gradients."""

    def __init__(self):
        super().__init__()
        self.teacher = nn.Linear(WIDTH, WIDTH).requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            goal = self.teacher(x)
        return torch.tanh(self.linear(x)) + 0.1 * goal


@torch.no_grad()
def move_teachers(model, k):
    for layer in model.layers:
        for slow, fast in zip(layer.teacher.parameters(), layer.linear.parameters(), strict=True):
            slow.mul_(1 - 0.5 / (1 + k)).add_(fast, alpha=0.5 / (1 + k))


class Clipped(Block):
    """A hook on a tensor scales its gradient by an attribute."""

    def forward(self, x):
        y = torch.tanh(self.linear(x))
        y.register_hook(lambda gradient: gradient * self.scale)
        return y


def rescale(model, k):
    for layer in model.layers:
        layer.scale = 1.0 + k // 2


def doubled_gradient(parameter):
    parameter.grad.mul_(2.0)


def hook_parameters(model, k):
    if k == 1:
        model.layers[1].linear.weight.register_hook(lambda gradient: gradient * 0.5)
    if k == 2:
        model.head.weight.register_post_accumulate_grad_hook(doubled_gradient)


class Functional(Block):
    """Calls its layer with other parameters, batched and differentiated by torch.func."""

    def forward(self, x):
        own = dict(self.linear.named_parameters())
        scaled = {name: value * self.scale for name, value in own.items()}
        y = torch.func.functional_call(self.linear, scaled, (x,))
        slope = torch.func.vmap(torch.func.grad(lambda row: torch.tanh(row).sum()))(y.detach())
        return torch.tanh(y) + 0.1 * slope


def tie(model, k):
    if k == 2:
        model.head.weight = model.layers[0].linear.weight


class Seeds(Block):
    """Sets torch's generator in forward."""

    def forward(self, x):
        torch.manual_seed(self.seed)
        return F.dropout(torch.tanh(self.linear(x)), 0.3)


def reseed(model, k):
    for i, layer in enumerate(model.layers):
        layer.seed = i + 10 * (k // 2)


class Forks(Block):
    """Draws in a fork of torch's generator."""

    def forward(self, x):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            noise = torch.rand(WIDTH)
        return F.dropout(torch.tanh(self.linear(x)) + noise, 0.3)


class Switches(Block):
    """Computes in a format that the loop changes."""

    def forward(self, x):
        return torch.tanh(F.linear(x.to(self.format), self.linear.weight.to(self.format))).float()


def switch_format(model, k):
    for layer in model.layers:
        layer.format = torch.float64 if k >= 2 else torch.float32


def double_the_model(model, k):
    if k == 2:
        model.double()


def doubled_data(k, x, target):
    return (x.double(), target.double()) if k >= 2 else (x, target)


def grow(model, k):
    if k == 2:
        torch.manual_seed(7)
        model.layers.append(nn.Linear(WIDTH, WIDTH))


class Constants(Block):
    """Makes a constant in the default format."""

    def forward(self, x):
        return (torch.tanh(self.linear(x)) * torch.tensor(1 / 3).double()).float()


class DefaultFormat:
    """The default format of a step."""

    def __init__(self, k):
        self.format = torch.float64 if k >= 2 else torch.float32

    def __enter__(self):
        torch.set_default_dtype(self.format)

    def __exit__(self, *_):
        torch.set_default_dtype(torch.float32)


def scaled_by_table():
    return SETTINGS["scale"]


class ReadsFunction(Block):
    """Reads a global through functions: one wrapped, one partial."""

    def forward(self, x):
        return torch.tanh(self.linear(x)) * self.scale() * functools.partial(scaled_by_table)()


def from_functions():
    return Line(*(ReadsFunction(scale=functools.partial(scaled_by_table)) for _ in range(NUM)))


def set_table(model, k):
    SETTINGS["scale"] = 1.0 + 0.5 * (k // 2)


CONTEXT = contextvars.ContextVar("scale", default=1.0)


class ReadsContext(Block):
    def forward(self, x):
        return torch.tanh(self.linear(x)) * CONTEXT.get()


def set_context(model, k):
    CONTEXT.set(1.0 + 0.5 * (k // 2))


class Patched(Block):
    """A class whose forward the loop replaces."""

    def forward(self, x):
        return torch.tanh(self.linear(x))


PATCHED = Patched.forward


def patch_class(model, k):
    if k == 2:
        Patched.forward = lambda self, x: torch.relu(PATCHED(self, x))


def put_back():
    global SMOOTHING
    SMOOTHING, SETTINGS["scale"], Patched.forward = 0.0, 1.0, PATCHED
    CONTEXT.set(1.0)


class ArrayScale(Block):
    """Reads a number from an array of NumPy that the loop writes to."""

    def forward(self, x):
        return torch.tanh(self.linear(x)) * float(self.scale[0])


def write_array(model, k):
    for layer in model.layers:
        layer.scale[0] = 1.0 + k // 2


class FromFile(Block):
    """Reads a number from a file in every forward."""

    def forward(self, x):
        with open(self.path) as file:
            scale = float(file.read())
        return torch.tanh(self.linear(x)) * scale


class OwnGenerator(Block):
    """Draws from a generator of its own."""

    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x):
        return torch.tanh(self.linear(x)) + torch.rand(WIDTH, generator=self.generator)


class Experts(Block):
    """Sends rows to experts by their indices."""

    def __init__(self):
        super().__init__()
        self.other = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        first = self.linear(x)[:, 0] > 0
        y = torch.zeros_like(x)
        for chosen, expert in ((first, self.linear), (~first, self.other)):
            rows = chosen.nonzero().squeeze(1)
            y = y.index_add(0, rows, torch.tanh(expert(x[rows])))
        return x + y


class Packed(nn.Module):
    """A recurrent layer over sequences of several lengths."""

    def __init__(self):
        super().__init__()
        self.before = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        self.recurrent = nn.LSTM(WIDTH, WIDTH, num_layers=2, dropout=0.3, batch_first=True)
        self.after = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))

    def forward(self, x):
        lengths = torch.arange(BATCH // 4) % 4 + 1
        packed = rnn.pack_padded_sequence(
            self.before(x).reshape(-1, 4, WIDTH), lengths, batch_first=True, enforce_sorted=False
        )
        y, _ = self.recurrent(packed)
        y, _ = rnn.pad_packed_sequence(y, batch_first=True, total_length=4)
        return self.after(y).reshape(-1, WIDTH)


CASES = {
    "label smoothing": Case(Line, loss=smoothed, start=put_back),
    "stochastic depth": Case(of(StochasticDepth, rate=0.2), raise_rate, budget="110%"),
    "drop path": Case(of(DropPath, rate=0.2), raise_rate, budget="130%"),
    "ramped average": Case(of(RampedAverage)),
    "temperature": Case(tempered, next_epoch, budget="130%"),
    "weight norm": Case(of(Patched), normalise, budget="110%"),
    "spectral norm": Case(of(Patched), normalise_by_power, budget="110%"),
    "parametrised": Case(of(Patched), parametrise, budget="110%"),
    "merged": Case(of(Adapted), merge, budget="130%"),
    "thawed": Case(of(Patched), thaw_in_turn, budget="110%"),
    "checkpoints": Case(
        of(Checkpointed, gradient_checkpointing=False), toggle_checkpoints, budget="160%"
    ),
    "autocast within": Case(of(Mixed, mixed=False), toggle_mixed, budget="110%"),
    "autocast around": Case(
        of(Patched),
        around=lambda k: torch.autocast("cpu", torch.bfloat16, enabled=k >= 2),
        budget="110%",
    ),
    "evaluated within": Case(of(FreezesNorm), freeze_norms, budget="90%"),
    "evaluated": Case(of(Normed), evaluate_one, budget="100%"),
    "branches": Case(
        of(Branches), data=lambda k, x, target: (x * (-1) ** (k // 2), target), budget="150%"
    ),
    "curriculum": Case(
        of(Patched),
        data=lambda k, x, target: (x[: 16 * (k + 1)], target[: 16 * (k + 1)]),
        budget="500%",
    ),
    "teacher": Case(of(Taught), move_teachers),
    "tensor hook": Case(of(Clipped, scale=1.0), rescale, budget="130%"),
    "parameter hooks": Case(of(Patched), hook_parameters, budget="130%"),
    "torch.func": Case(of(Functional, scale=1.0), rescale, budget="100%"),
    "tied": Case(of(Patched), tie, budget="110%"),
    "seeded": Case(of(Seeds, seed=0), reseed, budget="100%"),
    "forked": Case(of(Forks), budget="100%"),
    "format": Case(of(Switches, format=torch.float32), switch_format, budget="150%"),
    "doubled": Case(of(Patched), double_the_model, data=doubled_data, budget="250%"),
    "grown": Case(of(Patched), grow, budget="150%"),
    "default format": Case(of(Constants), around=DefaultFormat, budget="150%"),
    "functions": Case(from_functions, set_table, start=put_back),
    "context variable": Case(of(ReadsContext), set_context, start=put_back, budget="130%"),
    "class patched": Case(of(Patched), patch_class, start=put_back, budget="110%"),
    "array": Case(
        lambda: Line(*(ArrayScale(scale=np.ones(1)) for _ in range(NUM))),
        write_array,
        budget="120%",
    ),
    "own generator": Case(of(OwnGenerator), budget="120%"),
    "experts": Case(of(Experts), budget="110%"),
    "packed": Case(Packed, budget="150%"),
}


def refused_or_same(case, level):
    """Refused with a line on what to do, or equal to the bit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            assert first_difference(case, level) is None
        except SchedsimError as error:
            return error
    return None


@pytest.mark.parametrize(
    ("name", "level"),
    slow_where(
        [(name, level) for name in CASES for level in ("auto", "in place")],
        lambda case: case[1] == "in place" or case[0] == "curriculum",
    ),
)
def test_a_loop_is_the_plain_one_to_the_bit(name, level):
    assert refused_or_same(CASES[name], level) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_loop_compiled_by_the_backend_is_the_plain_one_to_the_bit(name):
    refused = refused_or_same(CASES[name], "backend")
    assert (refused is not None) == (name == "class patched")


@pytest.mark.parametrize("level", ["auto", "op", "in place"])
def test_a_file_that_forward_reads_is_no_constant(tmp_path, level):
    path = tmp_path / "scale"

    def write(model, k):
        path.write_text(str(1.0 + k // 2))

    case = Case(of(FromFile, path=str(path)), write, start=lambda: path.write_text("1.0"))
    refused = refused_or_same(case, level)
    assert (refused is not None) == (level == "op")
    if refused is not None:
        assert "reads a file or a clock" in refused.message
        assert "set an attribute" in refused.hint

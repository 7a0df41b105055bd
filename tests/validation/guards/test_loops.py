"""Loops that change the model's Python between steps, or draw from Python in a step.

Every loop is run twice from the same start, with the plain step and with a rematerialized module.
Losses, gradients, parameters, buffers and generators are equal to the bit after every step, however
the module got there: by a new plan, at another level, or by the plain step, which it says once.
"""

from __future__ import annotations

import random
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402
from changing_loops import (  # noqa: E402
    WIDTH,
    Block,
    Case,
    Line,
    blocks,
    first_difference,
    same,
    train,
)
from tiers import slow_where  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.utils import prune  # noqa: E402

from schedsim.errors import UnsupportedError  # noqa: E402


class Annealed(Block):
    def forward(self, x):
        return torch.tanh(self.linear(x) / self.tau)


class Counting(Block):
    def forward(self, x):
        self.count += 1
        return torch.tanh(self.linear(x)) * (1.0 + 0.1 * self.count)


class LayerDrop(Block):
    def forward(self, x):
        return x if random.random() < 0.4 else torch.tanh(self.linear(x))


class Crop(Block):
    def forward(self, x):
        start = random.randint(0, len(x) // 2)
        return torch.tanh(self.linear(x)) + x[start : start + 1]


class NumpyNoise(Block):
    def forward(self, x):
        return torch.tanh(self.linear(x)) * float(np.random.rand())


class Average(Block):
    """A buffer that forward assigns anew."""

    def __init__(self):
        super().__init__()
        self.register_buffer("ema", torch.zeros(WIDTH))

    def forward(self, x):
        y = torch.tanh(self.linear(x))
        self.ema = 0.9 * self.ema + 0.1 * y.detach().mean(0)
        return y - self.ema


class Stores(Block):
    """Leaves a tensor on itself."""

    def forward(self, x):
        y = torch.tanh(self.linear(x))
        self.last = y.detach()
        return y


class Normed(Block):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x):
        return torch.tanh(self.norm(self.linear(x)))


class WithConfig(Block):
    """Reads a plain object that all blocks share."""

    def forward(self, x):
        return torch.tanh(self.linear(x)) * self.config["scale"][0]


class Holder:
    """A plain object with a number."""

    def __init__(self, value):
        self.value = value


SETTINGS = Holder(1.0)


class ReadsGlobal(Block):
    def forward(self, x):
        return torch.tanh(self.linear(x)) * SETTINGS.value


class ClassAttribute(Block):
    scale = 1.0

    def forward(self, x):
        return torch.tanh(self.linear(x)) * self.scale


def first_scale():
    SETTINGS.value, ClassAttribute.scale = 1.0, 1.0


class Iterates(Block):
    """Takes the next of an iterator in forward."""

    def forward(self, x):
        return torch.tanh(self.linear(x)) * next(self.numbers)


def numbers():
    """1, 2, 3, ..."""
    value = 0
    while True:
        value += 1
        yield value


class Teaches(Block):
    """Keeps a slow copy of its weight, whose data it replaces."""

    def __init__(self):
        super().__init__()
        self.slow = nn.Parameter(torch.zeros(WIDTH, WIDTH), requires_grad=False)

    def forward(self, x):
        self.slow.data = 0.9 * self.slow.data + 0.1 * self.linear.weight.detach()
        return torch.tanh(self.linear(x)) + F.linear(x, self.slow)


class CountsBackward(Block):
    """A hook of the module's backward counts, and scales by the count."""

    def __init__(self):
        super().__init__(count=0)
        self.register_full_backward_pre_hook(self.counted)

    def counted(self, _, gradients):
        self.count += 1
        return (gradients[0] * (1.0 + 0.1 * self.count),)

    def forward(self, x):
        return torch.tanh(self.linear(x))


def of(kind, *args, **kwargs):
    """A model of four such blocks."""
    return lambda: Line(*(kind(*args, **kwargs) for _ in range(4)))


def anneal(model, k):
    for layer in model.layers:
        layer.tau = 2.0 / (1 + k)


def schedule_dropout(model, k):
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.1 * (k + 1)


def schedule_momentum(model, k):
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.momentum = 0.5 / (1 + k)


def late_hook(model, k):
    if k == 2:
        model.layers[1].register_forward_hook(lambda module, inputs, output: output * 1.5)


def late_pre_hook_on_all(model, k):
    if k == 2:
        model.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 0.5,))


def late_backward_hook(model, k):
    if k == 2:
        model.layers[1].register_full_backward_hook(
            lambda module, inputs, outputs: tuple(g * 2 for g in inputs)
        )


def replace_module(model, k):
    if k == 2:
        torch.manual_seed(77)
        model.layers[1] = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())


def replace_forward(model, k):
    if k == 2:
        layer = model.layers[1]
        layer.forward = lambda x: torch.relu(layer[0](x))


def replace_parameter(model, k):
    if k == 2:
        torch.manual_seed(77)
        model.head.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))


def replace_buffer(model, k):
    if k >= 2:
        for layer in model.layers:
            layer.scale = torch.full((WIDTH,), 0.5 * k)


def prune_later(model, k):
    if k == 2:
        prune.random_unstructured(model.head, "weight", amount=0.5)


def set_config(model, k):
    model.layers[0].config["scale"][0] = 1.0 + 0.5 * (k // 2)


def set_global(model, k):
    SETTINGS.value = 1.0 + 0.5 * (k // 2)


def set_class(model, k):
    ClassAttribute.scale = 1.0 + 0.5 * (k // 2)


def freeze(model, k):
    if k == 2:
        model.layers[0].requires_grad_(False)


def mutate_constant(model, k):
    model.layers[0].scale.fill_(1.0 + k)


class Buffered(Block):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(WIDTH))

    def forward(self, x):
        return torch.tanh(self.linear(x)) * self.scale


def closure_loss():
    """A loss with a weight that the loop raises."""
    beta = [0.0]

    def warm(model, k):
        beta[0] = 0.25 * k

    def rebind(model, k):
        nonlocal weight
        weight = 0.25 * k

    weight = 0.0

    def loss(y, target):
        return F.mse_loss(y, target) + beta[0] * y.square().mean() + weight * y.abs().mean()

    def both(model, k):
        warm(model, k)
        rebind(model, k)

    return loss, both


def mixup_loss(generator):
    """A loss that mixes with a number from Python's or NumPy's generator."""

    def loss(y, target):
        share = generator()
        return share * F.mse_loss(y, target) + (1 - share) * F.mse_loss(y, target.flip(0))

    return loss


def logging_loss():
    """A loss that notes what it gave."""
    log = []

    def loss(y, target):
        value = F.mse_loss(y, target)
        log.append(value.item())
        return value

    loss.log = log
    return loss


class Trainer:
    """An object whose method is the loss."""

    def __init__(self):
        self.beta, self.seen = 0.0, 0

    def loss(self, y, target):
        return F.mse_loss(y, target) + self.beta * y.square().mean()


def trained():
    """A bound method as the loss, its weight raised by the loop."""
    trainer = Trainer()

    def raise_weight(model, k):
        trainer.beta, trainer.seen = 0.5 * (k // 2), k

    return trainer.loss, raise_weight


def from_recurrence(kind, **options):
    """A recurrent layer in a line."""

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.before = nn.Linear(WIDTH, WIDTH)
            self.recurrent = kind(WIDTH, WIDTH, **options)
            self.after = nn.Linear(WIDTH * (2 if options.get("bidirectional") else 1), WIDTH)

        def forward(self, x):
            y, _ = self.recurrent(self.before(x).reshape(-1, 4, WIDTH))
            return self.after(torch.tanh(y)).reshape(-1, WIDTH)

    return Recurrent


def both(make):
    """A case from a maker of (loss, before)."""
    return lambda build=Line: Case(build, loss=make)


CASES = {
    "attribute": Case(of(Annealed, tau=2.0), anneal),
    "counter": Case(of(Counting, count=0)),
    "dropout p": Case(lambda: Line(*blocks(dropout=0.1)), schedule_dropout, budget="100%"),
    "momentum": Case(of(Normed), schedule_momentum),
    "layer drop": Case(of(LayerDrop), budget="110%"),
    "crop": Case(of(Crop)),
    "numpy noise": Case(of(NumpyNoise), budget="120%"),
    "mixup of python": Case(Line, loss=lambda: (mixup_loss(random.random), None)),
    "mixup of numpy": Case(Line, loss=lambda: (mixup_loss(lambda: np.random.beta(1, 1)), None)),
    "closure": Case(Line, loss=closure_loss),
    "bound method": Case(Line, loss=trained),
    "logging": Case(Line, loss=lambda: (logging_loss(), None)),
    "buffer reassigned": Case(of(Average)),
    "buffer replaced": Case(of(Buffered), replace_buffer),
    "buffer written": Case(of(Buffered), mutate_constant),
    "constant written": Case(lambda: Line(*(Scaled() for _ in range(4))), mutate_constant),
    "hook": Case(Line, late_hook),
    "hook on all": Case(lambda: nn.Sequential(*blocks()), late_pre_hook_on_all),
    "backward hook": Case(Line, late_backward_hook),
    "backward count": Case(of(CountsBackward), budget="120%"),
    "data replaced": Case(of(Teaches)),
    "module replaced": Case(Line, replace_module),
    "module replaced in sequence": Case(lambda: nn.Sequential(*blocks()), lambda m, k: swap(m, k)),
    "forward replaced": Case(Line, replace_forward, budget="100%"),
    "parameter replaced": Case(Line, replace_parameter),
    "stored": Case(of(Stores), budget="105%"),
    "prune": Case(Line, prune_later),
    "config": Case(lambda: configured(), set_config),
    "global": Case(of(ReadsGlobal), set_global, start=first_scale),
    "class attribute": Case(of(ClassAttribute), set_class, start=first_scale),
    "frozen": Case(Line, freeze),
    "iterator": Case(lambda: Line(*(Iterates(numbers=numbers()) for _ in range(4)))),
    "lstm": Case(
        from_recurrence(nn.LSTM, num_layers=2, dropout=0.5, batch_first=True), budget="150%"
    ),
    "gru": Case(
        from_recurrence(nn.GRU, num_layers=3, dropout=0.3, bidirectional=True), budget="150%"
    ),
}


class Scaled(Block):
    """Multiplies by a tensor in a plain attribute."""

    def __init__(self):
        super().__init__()
        self.scale = torch.ones(WIDTH)

    def forward(self, x):
        return torch.tanh(self.linear(x)) * self.scale


def swap(model, k):
    """Put another layer in the place of one."""
    if k == 2:
        torch.manual_seed(77)
        model[1] = nn.Linear(WIDTH, WIDTH)


def configured():
    """Blocks that share a nested plain object."""
    config = {"scale": [1.0]}
    return Line(*(WithConfig(config=config) for _ in range(4)))


# What no plan at that level can be: a line says so when it is asked for.
REFUSED = {
    "op": (
        "counter",
        "layer drop",
        "crop",
        "numpy noise",
        "mixup of python",
        "mixup of numpy",
        "logging",
        "buffer reassigned",
        "stored",
        "iterator",
    ),
    "block": ("iterator", "lstm", "gru", "data replaced"),
    "auto": ("iterator", "data replaced"),
    "in place": ("iterator",),
}
# What by blocks or in place runs without the slow tier.
QUICK = (("attribute", "block"),)
# Their loss is the loop's own in place, and their model a plain one.
LOSSES = ("mixup of python", "mixup of numpy", "closure", "bound method", "logging")  # fmt: skip


@pytest.mark.parametrize(
    ("name", "level"),
    slow_where([(name, "auto") for name in CASES], lambda case: case[0] in ("gru", "closure"))
    + slow_where(
        [(name, "block") for name in CASES]
        + [(name, "in place") for name in CASES if name not in LOSSES],
        lambda case: case not in QUICK,
    )
    + slow_where(
        [(name, "op") for name in (*REFUSED["op"], "momentum", "prune", "lstm")],
        lambda case: case[0] == "momentum",
    ),
)
def test_a_loop_is_the_plain_one_to_the_bit_or_refused(name, level):
    case = CASES[name]
    if name in REFUSED[level]:
        with pytest.raises(UnsupportedError) as caught:
            train(case, level)
        assert caught.value.hint
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert first_difference(case, level) is None


def lines(name, level="auto"):
    """The lines that a loop says, in order, by class."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(CASES[name], level)
    own = ("ReplannedWarning", "BlockLevelWarning", "PlainStepWarning", "RoundingWarning")
    return [(w.category.__name__, str(w.message)) for w in caught if w.category.__name__ in own]


def test_each_new_plan_is_said_once_and_names_what_changed():
    """Four values of tau, the first planned for: three lines."""
    said = lines("attribute")
    assert [kind for kind, _ in said] == ["ReplannedWarning"] * 3
    assert "model.layers.0.tau is 1.0 instead of 2.0" in said[0][1]


@pytest.mark.slow
def test_plans_that_do_not_last_give_way_to_blocks_and_at_last_to_the_plain_step():
    """Four plans, for 0.1 and the three first of 0.5, 0.25, 0.167, 0.125; then no more."""
    assert [kind for kind, _ in lines("momentum")] == ["ReplannedWarning"] * 3 + [
        "BlockLevelWarning"
    ]
    assert [kind for kind, _ in lines("momentum", "op")] == ["ReplannedWarning"] * 3 + [
        "PlainStepWarning"
    ]
    assert lines("momentum", "block") == []  # blocks run the model's own Python


def test_steps_go_on_where_no_plan_is_left():
    """The plan's parameter is replaced, and the model then has a step that no plan is of."""

    class IteratesLater(Block):
        def forward(self, x):
            y = torch.tanh(self.linear(x))
            return y if self.later is None else y * next(self.later)

    def replace_and_iterate(model, k):
        replace_parameter(model, k)
        if k == 2:
            model.layers[0].later = numbers()

    case = Case(lambda: Line(*(IteratesLater(later=None) for _ in range(4))), replace_and_iterate)
    expected, _ = train(case)
    with pytest.warns(UserWarning, match="run as they are, not within the budget"):
        found, module = train(case, "block")
    assert all(map(same, found, expected))
    assert module.plans == []

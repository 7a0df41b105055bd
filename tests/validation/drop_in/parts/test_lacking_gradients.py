"""Compiled steps of loops that give some outputs no gradient: the logits beside a loss."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in import backend  # noqa: E402
from schedsim.validation.drop_in.backend import SESSIONS  # noqa: E402
from schedsim.validation.drop_in.parts.traced_part import TracedPart  # noqa: E402
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from tiers import slow_where  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim.errors import InfeasibleBudgetError  # noqa: E402

WORDS, WIDTH = 512, 128


class Language(nn.Module):
    """Words to words: the loss, the logits and an early state, as models of transformers."""

    def __init__(self):
        super().__init__()
        self.words, self.layer = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 16)
        self.head = nn.Linear(16, WORDS)

    def forward(self, x):
        state = torch.sin(self.words(x))
        logits = self.head(torch.tanh(self.layer(state)))
        return nn.functional.cross_entropy(logits.flatten(0, 1), x.flatten()), logits, state


def language():
    """The model and its words."""
    torch.manual_seed(0)
    return Language(), torch.randint(WORDS, (8, 32))


def alone(found):
    """The loss alone: no gradient of the logits comes."""
    return found[0]


def with_penalty(found):
    """A gradient of the logits comes, too."""
    return found[0] + found[1].square().mean() + found[2].square().mean()


def trained(model, x, call, uses):
    """The gradients of a step for each function of the outputs in `uses`."""
    found = []
    for use in uses:
        model.zero_grad()
        use(call(x)).backward()
        # In NumPy's memory: what the loop holds in torch's counts, and is refused where it grows.
        found.append([torch.from_numpy(p.grad.numpy().copy()) for p in model.parameters()])
    model.zero_grad()
    return found


def by_backend(model, budget):
    """The model within `budget`, and its session."""
    options = {"budget": budget, "compile": True, "effort": 0.1}
    module = torch.compile(model, backend=backend.schedsim, options=options)
    return module, lambda: next(s for o, s in SESSIONS.rows.values() if o == options)


def expected(uses):
    model, x = language()
    return trained(model, x, model, uses)


def assert_same(found, wanted):
    for ones, others in zip(found, wanted, strict=True):
        for one, other in zip(ones, others, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def peak_of(model, x, call):
    """Measured peak of a step by the loss alone."""
    trained(model, x, call, [alone] * 3)
    [reading] = AllocatorMeter().read(lambda: alone(call(x)).backward())
    resident = storage_bytes([list(model.parameters()), x])
    for parameter in model.parameters():
        parameter.grad = None
    return resident + reading.peak_bytes


@pytest.mark.slow
def test_states_without_a_gradient_take_no_zeros(uncompiled, monkeypatch):
    """Zeros for the state, which is read last, would be there where the backward takes most."""
    model, x = language()
    module, session = by_backend(model, "1GiB")
    assert_same(trained(model, x, module, [alone] * 3), expected([alone] * 3))
    without = peak_of(model, x, module)
    assert without <= session().peak_bytes
    torch._dynamo.reset()
    monkeypatch.setattr(TracedPart, "without_gradients", lambda self, lacking: None)
    module, _ = by_backend(model, "2GiB")
    assert peak_of(model, x, module) >= without + 4 * WIDTH * x.numel() - 64


@pytest.mark.slow
def test_a_gradient_may_come_in_a_later_step(uncompiled):
    """What the forward keeps serves both backwards."""
    uses = [alone, alone, with_penalty, alone, with_penalty, with_penalty, alone]
    model, x = language()
    module, _ = by_backend(model, "1GiB")
    assert_same(trained(model, x, module, uses), expected(uses))


@pytest.mark.slow
def test_in_place_within_small_budgets(uncompiled):
    """The measured peak is within the budget, in whichever groups the step runs."""

    def steps_within(budget):
        model, x = language()
        torch._dynamo.reset()
        schedsim.rematerialize(model, x, budget, in_place=True, compile=True, effort=0.1)
        assert_same(trained(model, x, model, [alone] * 3), expected([alone] * 3))
        return peak_of(model, x, model)

    with pytest.raises(InfeasibleBudgetError) as refused:
        steps_within(200_000)
    least = refused.value.plan.min_feasible_bytes
    del refused  # and with it the model of that try, which would count as another one
    gc.collect()
    assert steps_within(least + 64) <= least + 64


class Pooled(nn.Module):
    """A part in the middle returns a state that nothing behind it reads, as BigBird's pooler."""

    def __init__(self):
        super().__init__()
        self.first, self.pooler, self.head = (nn.Linear(16, 16) for _ in range(3))

    def encode(self, x):
        state = torch.tanh(self.first(x))
        return state, torch.tanh(self.pooler(state))

    def forward(self, x):
        state, _pooled = self.encode(x)
        torch._dynamo.graph_break()
        return self.head(state)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("is_in_place", "compiled"),
    slow_where(
        [(False, False), (False, True), (True, False), (True, True)], lambda case: sum(case) == 1
    ),
)
def test_what_only_a_lacking_gradient_reaches_gets_none(is_in_place, compiled, uncompiled):
    """Zeros there would have weight decay shrink weights that the plain step leaves alone."""
    torch.manual_seed(0)
    model, x = Pooled(), torch.randn(8, 16)
    options = {"effort": 0.1, "compile": compiled}
    if is_in_place:
        module = schedsim.rematerialize(model, x, "200%", in_place=True, **options)
    else:
        options["budget"] = "200%"
        module = torch.compile(model, backend="schedsim", options=options)
    for _ in range(3):
        model.zero_grad()
        module(x).square().mean().backward()
        assert model.pooler.weight.grad is None
        assert model.pooler.bias.grad is None
        assert model.first.weight.grad.abs().max() > 0

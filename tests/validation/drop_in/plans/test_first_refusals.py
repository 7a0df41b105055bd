"""Refusals in the first forward name a budget for all of its graphs."""

from __future__ import annotations

import gc
import re

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim.errors import InfeasibleBudgetError  # noqa: E402


class Layer(nn.Module):
    """A layer whose parameters are known when its graph comes."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


class Broken(nn.Module):
    """Layers with a break behind each, in one function or in a loop, which Dynamo gives up."""

    def __init__(self, in_loop: bool) -> None:
        super().__init__()
        self.one, self.two, self.three = Layer(), Layer(), Layer()
        self.in_loop = in_loop

    def forward(self, x):
        if self.in_loop:
            for layer in (self.one, self.two, self.three):
                x = layer(x)
                torch._dynamo.graph_break()
            return x
        x = self.one(x)
        torch._dynamo.graph_break()
        return self.three(self.two(x))


def by_backend(model, x, budget):
    """The model with a budget."""
    options = {"budget": budget, "effort": 0.2, "extra_bytes": storage_bytes([x])}
    return torch.compile(model, backend="schedsim", options=options)


def in_place(model, x, budget):
    """The model with a budget."""
    extra = storage_bytes([x])
    schedsim.rematerialize(model, x, budget, in_place=True, effort=0.2, extra_bytes=extra)
    return model


def peak_within(make, in_loop, budget):
    """The measured peak of a loop's later steps."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = Broken(in_loop), torch.randn(128, 32)
    target = torch.randn(128, 32)
    module = make(model, x, budget)

    def step():
        nn.functional.mse_loss(module(x), target).backward()
        model.zero_grad()

    for _ in range(4):
        step()
    [reading] = AllocatorMeter().read(step)
    return storage_bytes([list(model.parameters()), x, target]) + reading.peak_bytes


def named_for(make, in_loop):
    """The budget that the refusal of a tiny one names, whose traceback holds graphs."""
    with pytest.raises(InfeasibleBudgetError, match=r"the first forward, of \d graphs") as refused:
        peak_within(make, in_loop, 1000)
    return int(re.search(r"budget=(\d+)", refused.value.hint)[1])


@pytest.mark.slow
@pytest.mark.parametrize("in_loop", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("make", [pytest.param(by_backend, marks=pytest.mark.slow), in_place])
def test_the_budget_that_a_first_refusal_names_is_enough_for_all_graphs(make, in_loop):
    budget = named_for(make, in_loop)
    gc.collect()
    assert peak_within(make, in_loop, budget) <= budget


@pytest.mark.slow
def test_a_graph_that_no_other_follows_is_refused_before_it_runs():
    torch._dynamo.reset()
    x = torch.randn(128, 32)
    module = by_backend(Layer(), x, 1000)
    with pytest.raises(InfeasibleBudgetError, match="step does not fit"):
        module(x)


@torch._dynamo.disable
def out_of_memory(x):
    raise torch.OutOfMemoryError("made up")


class Large(nn.Module):
    """Two layers, between which memory runs out."""

    def __init__(self):
        super().__init__()
        self.one, self.two = Layer(), Layer()

    def forward(self, x):
        return self.two(out_of_memory(self.one(x)))


def test_a_first_forward_that_runs_out_of_memory_is_refused_with_a_budget():
    """Its graphs run on over the budget, so that all become known."""
    torch._dynamo.reset()
    with pytest.raises(InfeasibleBudgetError, match="does not fit") as refused:
        in_place(Large(), torch.randn(128, 32), 1000)
    assert "budget=" in refused.value.hint


class Apart(nn.Module):
    """Three graphs, between which other code may take memory that no graph tells of."""

    def __init__(self, num_between: int = 0) -> None:
        super().__init__()
        self.one, self.two, self.three = (nn.Sequential(Layer(), Layer()) for _ in range(3))
        self.num_between = num_between

    def forward(self, x):
        x = between(self.one(x), self.num_between)
        torch._dynamo.graph_break()
        return self.three(self.two(x))


@torch._dynamo.disable
def between(x, num_times):
    for _ in range(num_times):
        x = torch.sin(x)
    return x


def bare_loop(model_of, budget):
    """Steps without an optimizer that drop their outputs; how many there were, or the refusal."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = model_of(), torch.randn(128, 32)
    num_steps = 0
    try:
        schedsim.rematerialize(model, x, budget, in_place=True, effort=0.1, check="never")
        while num_steps < 3:
            num_steps += 1
            model(x).square().sum().backward()
            model.zero_grad()
    except InfeasibleBudgetError as error:
        return num_steps, error.with_traceback(None)
    return num_steps, None


@pytest.mark.slow
@pytest.mark.parametrize("num_between", [0, 8])
def test_the_least_budget_that_a_first_refusal_says_works_and_little_less_does_not(num_between):
    """It is that of a loop that drops its outputs; code between graphs is measured in a step."""

    def model_of():
        return Apart(num_between)

    num_steps, refused = bare_loop(model_of, 20_000)
    assert not num_steps
    least = refused.min_feasible_bytes
    gc.collect()
    num_steps, refused = bare_loop(model_of, int(1.02 * least))
    assert refused is None
    gc.collect()
    _, refused = bare_loop(model_of, int(0.97 * least))
    assert refused is not None


class Alike(nn.Module):
    """Layers with a break behind each, of which several run by one graph."""

    def __init__(self, num_layers: int = 5) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(num_layers))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            torch._dynamo.graph_break()
        return x


@pytest.mark.slow
def test_the_budget_that_is_named_has_room_for_the_states_of_layers_that_share_a_graph():
    """Those of Adam are as many as the parameters of all layers, not of all graphs."""
    torch._dynamo.reset()
    model, x = Alike(), torch.randn(128, 32)
    with pytest.raises(InfeasibleBudgetError) as refused:
        in_place(model, x, 30_000)
    states = re.search(r"([\d.]+) kB .* for the states of Adam", refused.value.hint)
    assert states is not None
    assert float(states[1]) == pytest.approx(
        2 * storage_bytes(list(model.parameters())) / 1e3, 0.01
    )
    named = int(re.search(r"budget=(\d+)", refused.value.hint)[1])
    torch._dynamo.reset()
    in_place(model, x, named)
    optimizer, target = torch.optim.Adam(model.parameters()), torch.randn(128, 32)
    for _ in range(4):
        nn.functional.mse_loss(model(x), target).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.slow
def test_a_try_that_is_still_held_is_named_by_the_refusal_of_the_next_one():
    """Its error holds the frames of the loop, and these the outputs, which are in memory."""
    gc.collect()  # what other tests have left would be named too
    x, errors = torch.randn(128, 32), []
    for _ in range(2):
        torch._dynamo.reset()
        model = by_backend(Broken(in_loop=False), x, 60_000)

        def step(model):
            output = model(x)
            output.square().mean().backward()

        with pytest.raises(InfeasibleBudgetError) as refused:
            step(model)
        errors.append(refused.value)
    assert "sys.last_value" not in errors[0].hint
    assert "of a refused try whose error is held still" in errors[1].hint

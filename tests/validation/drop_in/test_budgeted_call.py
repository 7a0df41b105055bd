"""When a model in place runs by its schedules, and when as it is."""

from __future__ import annotations

import copy
import inspect
import os
import re
import warnings

import pytest

torch = pytest.importorskip("torch")

from in_place_models import Net  # noqa: E402
from schedsim.validation.drop_in import budgeted_call  # noqa: E402
from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from schedsim.validation.guards.differential import Difference  # noqa: E402
from schedsim.validation.guards.plan_variants import (  # noqa: E402
    PlainStepWarning,
    RoundingWarning,
)
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from schedsim.validation.torch_private.module_tables import as_itself  # noqa: E402
from tiers import slow_where  # noqa: E402
from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import schedsim  # noqa: E402


class StopsDynamo(nn.Module):
    """A loop in whose midst no version of Dynamo traces, so that none traces any part of it."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(16))

    def forward(self, x):
        for _ in range(2):
            torch._dynamo.graph_break()
            x = torch.tanh(x @ self.weight)
        return x


def test_the_line_of_a_plain_step_names_what_stopped_dynamo():
    """And what the user may do."""
    with pytest.warns(PlainStepWarning, match="traces no part of it: .*break.*give the loss"):
        schedsim.rematerialize(StopsDynamo(), torch.randn(8, 16), "80%", in_place=True, effort=0.2)


def test_a_scripted_layer_of_a_model_that_dynamo_does_not_trace_is_no_error():
    """A line says that the step runs as it is."""
    scripted = torch.jit.script(nn.Sequential(nn.Linear(16, 16), nn.Tanh()))
    model = nn.Sequential(nn.Linear(16, 16), scripted)
    with pytest.warns(PlainStepWarning, match="runs as it is"):
        schedsim.rematerialize(model, torch.randn(8, 16), "1MiB", in_place=True, effort=0.2)
    model(torch.randn(8, 16)).sum().backward()


class Squashed(nn.Linear):
    """A layer with a forward of its own, which Dynamo traces."""

    def forward(self, x):
        return torch.tanh(super().forward(x))


@pytest.mark.slow
def test_the_parts_around_a_scripted_layer_are_planned_and_compared():
    """Dynamo traces modules inside of a model that it gives up."""
    torch.manual_seed(0)
    scripted = torch.jit.script(nn.Sequential(nn.Linear(16, 16), nn.Tanh()))
    model = nn.Sequential(nn.Linear(16, 16), scripted, Squashed(16, 16))
    x = torch.randn(8, 16)
    for _ in range(3):  # TorchScript runs other code from its second call on
        model.zero_grad()
        model(x).square().mean().backward()
    want = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    schedsim.rematerialize(model, x, "1MiB", in_place=True, effort=0.2)
    assert len(session_in(model).parts) > 0
    assert "plain step's to the bit" in session_in(model).check_note
    model(x).square().mean().backward()
    assert all(map(torch.equal, want, [parameter.grad for parameter in model.parameters()]))


@pytest.mark.slow
def test_a_forward_within_a_transform_runs_as_it_is_and_a_line_says_so():
    """Gradients for each sample, whose tensors have no storage."""
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.randn(8, 4)
    plain = copy.deepcopy(model)
    schedsim.rematerialize(model, x, "1MiB", in_place=True, effort=0.2)

    def gradients(of):
        def loss(parameters, row):
            return torch.func.functional_call(of, parameters, (row[None],)).square().sum()

        parameters = {name: it.detach() for name, it in of.named_parameters()}
        return torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)

    with pytest.warns(PlainStepWarning, match=r"transform of torch\.func .* runs as it is"):
        found = gradients(model)
    assert all(map(torch.equal, found.values(), gradients(plain).values()))
    model(x).sum().backward()


@pytest.mark.slow
def test_a_model_with_a_budget_is_traced_as_it_is():
    """torch.jit.trace met Dynamo's wrapper, and raised, and so did the places of fake tensors."""
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.randn(8, 4)
    schedsim.rematerialize(model, x, "1MiB", in_place=True, effort=0.2)
    assert torch.equal(torch.jit.trace(model, x)(x), model(x))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert model(mode.from_tensor(x)).shape == (8, 4)


@pytest.mark.slow
def test_a_graph_of_forward_mode_differentiation_may_live_on():
    """It saves zeros without storage, whose place was asked for as the next step began."""
    model, x = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), torch.randn(8, 4)
    schedsim.rematerialize(model, x, "1MiB", in_place=True, effort=0.2)

    def tangent(of):
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
            return torch.autograd.forward_ad.unpack_dual(of(dual)).tangent

    with pytest.warns(PlainStepWarning, match="forward-mode"):
        found = tangent(model)
    for _ in range(2):
        model(x).sum().backward()
    assert torch.equal(found, tangent(schedsim.restore(model)))


class Anneals(nn.Module):
    """A number that each forward changes, as a temperature; in a buffer or not."""

    def __init__(self, in_buffer):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        if in_buffer:
            self.register_buffer("heat", torch.ones(()))
        else:
            self.heat = 1.0

    def forward(self, x):
        if isinstance(self.heat, float):
            self.heat = self.heat * 0.9
        else:
            self.heat.mul_(0.9)
        return torch.tanh(self.layer(x)) * self.heat


@pytest.mark.slow
@pytest.mark.parametrize("in_buffer", slow_where([False, True], lambda it: not it))
def test_a_number_that_each_forward_changes_is_named_with_what_to_write(in_buffer):
    """Where it stops Dynamo; in a buffer it does not."""
    model, x = Anneals(in_buffer), torch.randn(8, 4)
    with torch._dynamo.config.patch(recompile_limit=2), warnings.catch_warnings(record=True) as w:
        warnings.simplefilter("always")
        schedsim.rematerialize(model, x, "1MiB", in_place=True, effort=0.2, check="never")
        for _ in range(5):
            model(x).sum().backward()
    lines = [str(it.message) for it in w if it.category is PlainStepWarning]
    assert len(lines) == (not in_buffer)
    named = r"`heat` has gone from 1.0 to [\d.]+: keep it in a buffer"
    assert in_buffer or re.search(named, lines[0])


class ReadsEnvironment(Net):
    def forward(self, x):
        return super().forward(x)["hidden"] * float(os.environ.get("SCHEDSIM_SCALE_OF_A_TEST", "1"))


@pytest.mark.slow
def test_variables_of_the_environment_are_followed(batch, monkeypatch):
    """Dynamo takes them for constants."""
    monkeypatch.delenv("SCHEDSIM_SCALE_OF_A_TEST", raising=False)
    model = ReadsEnvironment(depth=2)
    schedsim.rematerialize(model, batch[0], "1MiB", in_place=True)
    for scale in (1.0, 0.5, 1.0):
        monkeypatch.setenv("SCHEDSIM_SCALE_OF_A_TEST", str(scale))
        torch.manual_seed(2)
        found = model(batch[0])
        with as_itself(model):
            torch.manual_seed(2)
            assert torch.equal(found, model(batch[0]))
        found.sum().backward()


@pytest.mark.slow
def test_a_variable_that_changes_every_step_is_not_traced_for_ever(batch, monkeypatch):
    """As many values as Dynamo would trace anew; then the step runs as it is, with one line."""
    monkeypatch.setenv("SCHEDSIM_SCALE_OF_A_TEST", "1")
    model = ReadsEnvironment(depth=2)
    few = torch._dynamo.config.patch(recompile_limit=2)
    with few, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        schedsim.rematerialize(model, batch[0], "1MiB", in_place=True)
        for scale in ("1", "2", "3", "4", "1"):
            monkeypatch.setenv("SCHEDSIM_SCALE_OF_A_TEST", scale)
            torch.manual_seed(2)
            found = model(batch[0])
            with as_itself(model):
                torch.manual_seed(2)
                assert torch.equal(found, model(batch[0]))
            found.sum().backward()
    lines = [str(one.message) for one in caught if one.category is PlainStepWarning]
    assert len(lines) == 1
    assert "too many retracings" in lines[0]


class Breaks(nn.Module):
    """Behind the broken graph, Dynamo traces the class's own code."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        torch._dynamo.graph_break()
        return self.last(x)


@pytest.mark.slow
@pytest.mark.parametrize("alone", [True, False])
def test_many_models_of_one_class_have_budgets(batch, monkeypatch, alone):
    """More than Dynamo traces of one method: each is counted alone, or the limit is named."""
    if alone and "isolate_recompiles" not in inspect.signature(torch.compile).parameters:
        pytest.skip("this torch counts traces of all models of a class together")
    if not alone:
        monkeypatch.setattr(
            budgeted_call,
            "compiled_alone",
            lambda run, backend, dynamic: torch.compile(run, backend=backend, dynamic=dynamic),
        )

    def lines():
        model = Breaks()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            schedsim.rematerialize(
                model, batch[:1], "1MiB", in_place=True, effort=0.1, background=False
            )
            model(batch[0]).sum().backward()
        held.append(model)
        found = [str(one.message) for one in caught if one.category is PlainStepWarning]
        assert bool(found) != bool(session_in(model).parts)
        return found

    held = []
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=2):
        found = [lines() for _ in range(3)]
        if alone:
            assert found == [[]] * 3
            return
        assert found[:2] == [[]] * 2
        assert "has traced Breaks.forward 2 times" in found[2][0]
        assert "torch._dynamo.reset()" in found[2][0]
        torch._dynamo.reset()
        assert lines() == []


def measured(model, batch, run):
    [reading] = AllocatorMeter().read(run)
    return reading.peak_bytes + storage_bytes([*model.parameters(), *batch]), reading.result


@pytest.mark.slow
@pytest.mark.parametrize("trains", [True, False])
def test_the_mode_of_a_model_stays_and_steps_in_either_are_within_the_budget(batch, trains):
    """Pretrained models come in evaluation mode, and adversarial examples are made in it."""
    torch.manual_seed(0)
    model = Net().train(trains)
    model.layers[0].eval()
    plain, (x, _) = copy.deepcopy(model), batch
    inputs = x.clone().requires_grad_()
    budget = 250_000
    schedsim.rematerialize(model, x, budget, in_place=True, effort=0.1)
    assert [m.training for m in model.modules()] == [m.training for m in plain.modules()]

    def step(model):
        model(inputs)["hidden"].square().mean().backward()
        found = [inputs.grad, *(p.grad for p in model.parameters())]
        inputs.grad = None
        model.zero_grad()
        return found

    for mode in (trains, False):
        found = []
        for one in (model.train(mode), plain.train(mode)):
            torch.manual_seed(1)
            found.append([step(one) for _ in range(4)])
        for mine, its in zip(*found, strict=True):
            assert all(map(torch.equal, mine, its))
        peaks = [measured(one, (inputs,), lambda one=one: step(one))[0] for one in (model, plain)]
        assert peaks[0] <= budget < peaks[1], (mode, peaks)


@pytest.mark.slow
def test_a_comparison_that_takes_the_memory_of_the_plain_step_says_so(batch, monkeypatch):
    """The report has the line, and names what differs by rounding."""
    model = Net(depth=2)
    schedsim.rematerialize(model, batch[0], "1MiB", in_place=True, effort=0.2)

    def found(*given):
        given[-1].take("because")
        return Difference("x is off by 1e-07", True)

    monkeypatch.setattr(budgeted_call, "difference", found)
    model.scale = 0.5
    with (
        pytest.warns(PlainStepWarning, match=r"takes the plain step's memory \(.*B\)"),
        pytest.warns(RoundingWarning, match="1e-07"),
    ):
        model(batch[0])["hidden"].sum().backward()
    assert "not the budget's: because" in schedsim.drop_in_report(model)


@pytest.mark.slow
def test_a_graph_that_is_compared_between_two_forwards_leaves_the_first_one_its_backward():
    """Adversarial training in evaluation mode: batch norms save buffers, which a comparison puts
    back as they were, and torch counted that as a write."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh()).eval()
    x = torch.randn(16, 8)
    plain = copy.deepcopy(model)
    schedsim.rematerialize(model, x, "1MiB", in_place=True, effort=0.1)
    found = []
    for call in (plain, model):
        moved = (x + 0.1).requires_grad_()
        loss = (call(moved) * call(x)).sum()
        found.append(torch.autograd.grad(loss, moved)[0])
    assert session_in(model).num_compared == 2  # each forward's: the second has no gradient to give
    assert torch.equal(*found)


@pytest.mark.slow
@pytest.mark.parametrize("is_early", [False, True])
def test_gradients_beside_a_comparison_in_the_middle_of_a_run_are_told_of(is_early):
    """They wait while the step that is compared makes its own: once, with their bytes."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(4))
    model, x = nn.Sequential(*layers), torch.randn(64, 64)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        schedsim.rematerialize(model, x, "100%", in_place=True, effort=0.2)
        for step in range(6):
            if step in (2, 4):
                model.append(nn.Tanh())  # a new graph, and no more gradients
            if is_early:
                model.zero_grad()
            loss = model(x).square().mean()
            model.zero_grad()
            loss.backward()
    lines = [line for it in said if "was compared with its plain" in (line := str(it.message))]
    assert len(lines) == (not is_early)
    held = sum(it.nbytes for it in model.parameters())
    assert not lines or f"{held / 1000:.2f} kB" in lines[0]

"""A model that stays itself."""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import os
import pickle
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.in_place import (  # noqa: E402
    _inlined,
    _left_as_it_is,
    as_itself,
    session_in,
)
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim.errors import (  # noqa: E402
    InfeasibleBudgetError,
    SchedsimError,
    UnsupportedError,
)

LOGGER = logging.getLogger("talks")


class Net(nn.Module):
    """With dropout, and an output that is no loss."""

    def __init__(self, width=32, depth=6):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.drop = nn.Dropout(0.15)
        self.scale = 1.0

    def forward(self, x):
        for layer in self.layers:
            x = self.drop(torch.tanh(layer(x))) * self.scale
        return {"hidden": x, "mean": x.mean(1)}


@pytest.fixture
def batch():
    torch.manual_seed(1)
    return torch.randn(128, 32), torch.randn(128, 32)


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


def test_each_model_has_code_of_its_own():
    """Dynamo keeps its graphs by code: those of one model are not tried for another."""
    one, two = (_inlined(print) for _ in range(2))
    assert one.__code__ is not two.__code__


class ReadThenGRU(nn.Module):
    """Layers that Dynamo traces, and one that it refuses unless it is asked for."""

    def __init__(self):
        super().__init__()
        self.read = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(4)))
        self.gru = nn.GRU(16, 16, num_layers=2, dropout=0.3, batch_first=True)

    def forward(self, x):
        return self.gru(self.read(x))[0]


def trained(model, x):
    torch.manual_seed(5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        loss = model(x).square().mean()
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


@pytest.mark.slow
def test_a_recurrent_layer_is_one_op():
    """All of it is planned, its dropout too, and Dynamo's settings are as they were."""
    names = ("allow_rnn", "skip_nnmodule_hook_guards")
    before = {name: getattr(torch._dynamo.config, name) for name in names}
    torch.manual_seed(0)
    model, x = ReadThenGRU(), torch.randn(8, 12, 16)
    plain = copy.deepcopy(model)
    expected = trained(plain, x)
    schedsim.rematerialize(model, x, 600_000, in_place=True, effort=0.2)
    assert trained(model, x) == expected
    *_, part = session_in(model).parts
    assert any("recurrent" in str(call.target) for call in part.program.calls)
    assert before == {name: getattr(torch._dynamo.config, name) for name in names}


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
    from schedsim.validation.guards.plan_variants import PlainStepWarning

    with pytest.warns(PlainStepWarning, match="traces no part of it: .*break.*give the loss"):
        schedsim.rematerialize(StopsDynamo(), torch.randn(8, 16), "80%", in_place=True, effort=0.2)


def test_what_fails_by_schedules_alone_is_refused(batch, monkeypatch):
    """One line; a model that fails by itself fails as it does."""
    from schedsim.validation.drop_in.traced_part import TracedPart

    def fails(self, arguments):
        raise RuntimeError("no such view")

    monkeypatch.setattr(TracedPart, "forward", fails)
    model = Net(depth=2)
    with pytest.raises(UnsupportedError, match="by its schedules fails: RuntimeError: no such"):
        schedsim.rematerialize(model, batch[0], "80%", in_place=True)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        schedsim.rematerialize(model, torch.randn(4, 7), "80%", in_place=True)


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


class Talks(Net):
    """Says something once in the midst of its forward, as libraries do."""

    def forward(self, x):
        found = super().forward(x)
        self.say()
        return {**found, "wide": torch.tanh(found["hidden"]) * 2}

    def say(self):
        LOGGER.warning_once("a setting is not known")


def test_what_is_said_once_breaks_no_graph_and_is_said(batch, caplog, monkeypatch):
    """Each break would trace the rest once more, in each frame above it."""

    @functools.lru_cache(None)
    def warning_once(self, message):
        self.warning(message)

    monkeypatch.setattr(logging.Logger, "warning_once", warning_once, raising=False)
    model = schedsim.rematerialize(Talks(), batch[0], "280kB", in_place=True, effort=1)
    assert len(session_in(model).parts) == 1
    assert [record.message for record in caplog.records if record.name == "talks"] == [
        "a setting is not known"
    ]


class Counting:
    """What a plain object counts: the first step makes an attribute of the class's default."""

    steps = 0


STEPS = 0


class LeavesTraces(Net):
    """A forward that changes Python, draws from generators of its own and sets parameters once."""

    def __init__(self):
        super().__init__(depth=2)
        self.count = Counting()
        self.numpy = np.random.default_rng(3)
        self.own = {"noise": [torch.Generator().manual_seed(4)]}
        self.shift, self.is_set = nn.Parameter(torch.zeros(32)), False

    def noise(self, x):
        """From generators that Dynamo does not trace."""
        return torch.randn(x.shape, generator=self.own["noise"][0]) * self.numpy.random()

    def forward(self, x):
        global STEPS
        STEPS += 1
        self.count.steps += 1
        x = super().forward(x)["hidden"] * self.count.steps
        if not self.is_set:
            self.is_set = True
            with torch.no_grad():
                self.shift.copy_(-x.mean(0))
        return (x + self.shift) * STEPS

    def left(self):
        """What it has left behind."""
        drawn = self.numpy.bit_generator.state["state"]
        state = self.own["noise"][0].get_state().tolist()
        return [STEPS, dict(vars(self.count)), self.is_set, drawn, state, self.shift.tolist()]


def test_a_forward_that_leaves_traces_is_the_plain_one(batch):
    """Nothing of the steps that plan and compare is left; no warning says so, so bits must."""
    global STEPS
    x, other = batch
    found = []
    for budget in (None, "1MiB"):
        STEPS = 0
        torch.manual_seed(0)
        model = LeavesTraces()
        if budget:
            before = model.left()
            schedsim.rematerialize(model, other, budget, in_place=True)
            assert model.left() == before
        torch.manual_seed(2)
        outputs = [model(x) for _ in range(2)]
        sum(y.square().mean() for y in outputs).backward()
        found.append([*outputs, *(p.grad for p in model.parameters())])
    assert all(map(torch.equal, *found))


class FakeQuantized(nn.Linear):
    """Quantises its weight by channel as torch.ao does: the op enlarges empty buffers.

    Dynamo does not trace torch's own module either.
    """

    def __init__(self, width):
        super().__init__(width, width)
        self.register_buffer("on", torch.ones(1, dtype=torch.long))
        self.register_buffer("least", torch.empty(0))
        self.register_buffer("most", torch.empty(0))
        self.register_buffer("scale", torch.ones(1))
        self.register_buffer("zero", torch.zeros(1, dtype=torch.int32))

    @torch.compiler.disable
    def quantized(self):
        state = (self.on, self.on, self.least, self.most, self.scale, self.zero)
        return torch.fused_moving_avg_obs_fake_quant(
            self.weight, *state, 0.5, -128, 127, 0, per_row_fake_quant=True
        )

    def forward(self, x):
        return nn.functional.linear(x, self.quantized(), self.bias)


def test_what_observers_have_seen_is_not_left_by_planning(batch):
    """Their ranges are averages over steps: a step too many would be another training."""
    found = []
    for budget in (None, "2MiB"):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), FakeQuantized(32))
        if budget:
            before = {name: buffer.tolist() for name, buffer in model.named_buffers()}
            schedsim.rematerialize(model, batch[0], budget, in_place=True, effort=0.1)
            assert {name: buffer.tolist() for name, buffer in model.named_buffers()} == before
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        for _ in range(3):
            nn.functional.mse_loss(model(batch[0]), batch[1]).backward()
            optimizer.step()
        found.append([*model.state_dict().values(), *(p.grad for p in model.parameters())])
    assert all(map(torch.equal, *found))


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


def test_a_variable_that_changes_every_step_is_not_traced_for_ever(batch, monkeypatch):
    """As many values as Dynamo would trace anew; then the step runs as it is, with one line."""
    from schedsim.validation.guards.plan_variants import PlainStepWarning

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
    from schedsim.validation.drop_in import in_place
    from schedsim.validation.guards.plan_variants import PlainStepWarning

    if alone and "isolate_recompiles" not in inspect.signature(torch.compile).parameters:
        pytest.skip("this torch counts traces of all models of a class together")
    if not alone:
        monkeypatch.setattr(
            in_place,
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


def test_generators_are_put_back_wherever_they_are(batch):
    """Attributes, items of containers, NumPy's; and what the forward writes in place."""

    class Noisy(LeavesTraces):
        def forward(self, x):
            return super().forward(x) + self.noise(x)

    model = Noisy()
    before = model.left()
    with as_itself(model), _left_as_it_is(model, (batch[0],), {}, True):
        model(batch[0])
        changed = model.left()
    assert model.left() == before
    assert not any(one == two for one, two in zip(before, changed, strict=True))


def test_an_iterator_is_not_used_up(batch):
    """Planning would take its items: refused before it does."""

    class Reads(Net):
        def __init__(self):
            super().__init__(depth=2)
            self.factors = iter([1.0, 2.0, 3.0])

        def forward(self, x):
            return super().forward(x)["hidden"] * next(self.factors)

    model = Reads()
    with pytest.raises(UnsupportedError, match=r"iterator, model\.factors"):
        schedsim.rematerialize(model, batch[0], "90%", in_place=True)
    assert next(model.factors) == 1.0


class Masked(nn.Module):
    """Draws by NumPy in the midst of a step, as speech models mask spans."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        x = torch.tanh(self.first(x / np.sqrt(8)))
        keep = np.random.rand(len(x)) > 0.3
        return self.last(x * torch.from_numpy(keep)[:, None])


def test_numpy_draws_as_in_the_plain_step():
    """From its own generator, and none of these draws is a constant of a graph."""
    torch.manual_seed(0)
    model, x = Masked(), torch.randn(16, 8)
    plain = copy.deepcopy(model)
    schedsim.rematerialize(model, x, "1MB", in_place=True, effort=0.1)
    found = []
    for module in (model, plain):
        np.random.seed(3)
        found.append([module(x).square().sum() for _ in range(3)])
    assert found[0] == found[1]
    assert len(session_in(model).parts) == 2


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


@pytest.mark.parametrize("trains", [pytest.param(True, marks=pytest.mark.slow), False])
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

"""What Dynamo traces of a model in place."""

from __future__ import annotations

import copy
import functools
import logging
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from in_place_models import Net  # noqa: E402
from schedsim.validation.drop_in.backend import session_of  # noqa: E402
from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from schedsim.validation.drop_in.tracing import inlined, is_inlined  # noqa: E402
from schedsim.validation.guards.plan_variants import PlainStepWarning  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402

LOGGER = logging.getLogger("talks")


def test_each_model_has_code_of_its_own():
    """Dynamo keeps its graphs by code: those of one model are not tried for another."""
    one, two = (inlined(print) for _ in range(2))
    assert one.__code__ is not two.__code__
    assert is_inlined(one.__code__)
    assert not is_inlined(inlined.__code__)


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


class Talks(Net):
    """Says something once in the midst of its forward, as libraries do."""

    def forward(self, x):
        found = super().forward(x)
        self.say()
        return {**found, "wide": torch.tanh(found["hidden"]) * 2}

    def say(self):
        LOGGER.warning_once("a setting is not known")


@pytest.mark.slow
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


class Masked(nn.Module):
    """Draws by NumPy in the midst of a step, as speech models mask spans."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        x = torch.tanh(self.first(x / np.sqrt(8)))
        keep = np.random.rand(len(x)) > 0.3
        return self.last(x * torch.from_numpy(keep)[:, None])


@pytest.mark.slow
@pytest.mark.parametrize("door", ["in place", "backend"])
def test_numpy_draws_as_in_the_plain_step(door):
    """From its own generator, and none of these draws is a constant of a graph."""
    torch.manual_seed(0)
    model, x = Masked(), torch.randn(16, 8)
    plain, options = copy.deepcopy(model), {"budget": "1MB", "effort": 0.1}
    if door == "backend":
        call = torch.compile(model, backend="schedsim", options=options)
    else:
        call = schedsim.rematerialize(model, x, in_place=True, **options)
    found = []
    for module in (call, plain):
        np.random.seed(3)
        found.append([module(x).square().sum() for _ in range(3)])
    assert found[0] == found[1]
    session = session_of(options) if door == "backend" else session_in(model)
    assert len(session.parts) == 2


class Counting(nn.Module):
    """A forward that counts itself, and asks the number."""

    def __init__(self):
        super().__init__()
        self.layer, self.count = nn.Linear(64, 64), 0  # Dynamo copies 5 kB of a generator's state

    def forward(self, x):
        self.count += 1
        return (
            torch.tanh(self.layer(x)) * min(1.0, self.count / 12) * (0.5 if self.count < 3 else 1)
        )


@pytest.mark.slow
@pytest.mark.parametrize("door", ["in place", pytest.param("backend", marks=pytest.mark.slow)])
def test_a_number_that_counts_forwards_is_planned_once(door):
    """In place by itself; by the backend with the setting that Dynamo's own message names."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = Counting(), torch.randn(32, 64)
    plain, step = copy.deepcopy(model), model
    num_steps = torch._dynamo.config.recompile_limit + 4
    wanted = []
    for _ in range(num_steps):  # in steps of the other model, it would run behind their backward
        wanted.append(plain(x))
        wanted[-1].sum().backward()
    settings = {}
    if door == "in place":
        schedsim.rematerialize(model, x, "200%", in_place=True, effort=0.1)
    else:
        settings = {"allow_unspec_int_on_nn_module": True}
        step = torch.compile(model, backend="schedsim", options={"budget": "200%", "effort": 0.1})
    with warnings.catch_warnings(), torch._dynamo.config.patch(settings):
        warnings.simplefilter("error", PlainStepWarning)
        for number in range(num_steps):
            found = step(x)
            assert torch.equal(found, wanted[number])
            found.sum().backward()
            assert model.count == number + 1
    assert torch.equal(model.layer.weight.grad, plain.layer.weight.grad)


class Remembering(nn.Module):
    """A forward that appends to a list."""

    def __init__(self):
        super().__init__()
        self.layer, self.history = nn.Linear(8, 8), []

    def forward(self, x):
        x = torch.tanh(self.layer(x))
        self.history.append(x.detach().mean())
        return x


@pytest.mark.slow
def test_a_list_that_grows_is_named():
    torch._dynamo.reset()
    model = nn.Sequential(Remembering())
    x = torch.randn(4, 8)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with torch._dynamo.config.patch(recompile_limit=2):
            schedsim.rematerialize(model, x, "200%", in_place=True, effort=0.1, check="never")
            for _ in range(5):
                model(x).sum().backward()
    lines = [str(it.message) for it in said if it.category is PlainStepWarning]
    assert any("`0.history` has grown from 0 to " in line for line in lines)
    assert len(model[0].history) == 5

"""torch.compile(model, backend="schedsim"): the loop is the user's own."""

from __future__ import annotations

import copy
import re
import sys
import tomllib
import warnings
from pathlib import Path
from types import ModuleType

import numpy
import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in import backend  # noqa: E402
from schedsim.validation.drop_in.backend import SESSIONS, session_of  # noqa: E402
from schedsim.validation.drop_in.backend_sessions import is_valid, options_given  # noqa: E402
from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from schedsim.validation.guards.plan_variants import PlainStepWarning, RoundingWarning  # noqa: E402
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from schedsim.validation.models import build_model  # noqa: E402
from step_models import TinyResNet  # noqa: E402
from tiers import slow_where  # noqa: E402

import schedsim  # noqa: E402
from schedsim.errors import SchedsimError  # noqa: E402


def trained(model, step, loss, inputs, num_steps=2, seed=0):
    """Losses of a few steps, and the parameters after them."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(seed)
    losses = []
    for _ in range(num_steps):
        value = loss(step(*inputs))
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(value.item())
    return losses, [p.detach().clone() for p in model.parameters()]


def language_model():
    sizes = {"layers": 3, "hidden": 64, "heads": 4, "vocab": 97, "batch": 4, "seq": 64}
    return build_model("gpt2", **sizes)


def image_model():
    target = torch.randint(0, 5, (64,))
    loss = lambda output: torch.nn.functional.cross_entropy(output, target)  # noqa: E731
    loss.target = target
    return TinyResNet(), (torch.randn(64, 3, 8, 8),), loss


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", slow_where([language_model, image_model], lambda make: make is language_model)
)
def test_less_memory_and_the_same_bits(make):
    """The loss is computed outside; the measured peak of the loop stays within the budget."""
    model, inputs, loss = make()
    plain = copy.deepcopy(model)
    resident = storage_bytes([*model.parameters(), *model.buffers(), *inputs, loss.target])
    [reading] = AllocatorMeter().read(lambda: trained(plain, plain, loss, inputs))
    store_all = reading.peak_bytes + resident
    budget = int(0.7 * store_all)
    spare = copy.deepcopy(model)
    options = {"budget": budget, "optimizer": "adamw", "effort": 1.0}
    step = torch.compile(model, backend="schedsim", options=options)
    trained(model, step, loss, inputs)  # costs are measured by the profiler that the meter uses
    with torch.no_grad():
        for own, first in zip(
            [*model.parameters(), *model.buffers()],
            [*spare.parameters(), *spare.buffers()],
            strict=True,
        ):
            own.copy_(first)
    [within] = AllocatorMeter().read(lambda: trained(model, step, loss, inputs))
    assert within.peak_bytes + resident <= budget
    assert within.result[0] == reading.result[0]
    assert all(map(torch.equal, within.result[1], reading.result[1]))
    assert all(map(torch.equal, model.buffers(), plain.buffers()))
    (part,) = session_of(options).parts
    assert max(part.run_counts.values()) > 1


def test_the_entry_point_is_the_checkout_s_too():
    """What an installed package announces, a checkout does."""
    from schedsim._checkout import _METADATA

    text = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    told = tomllib.loads(text)["project"]["entry-points"]["torch_dynamo_backends"]
    ((name, where),) = told.items()
    assert f"{name} = {where}" in _METADATA["entry_points.txt"]
    assert "schedsim" in torch._dynamo.list_backends()


def test_unknown_options_are_refused():
    """By name, with the nearest."""
    with pytest.raises(SchedsimError, match="'budgett'") as error:
        session_of({"budgett": 1})
    assert "'budget'" in str(error.value.hint)
    with pytest.raises(SchedsimError, match="needs a budget"):
        session_of(None)


def test_a_mode_of_inductor_is_refused_in_a_line():
    """It excludes options in torch.compile, so that there would be no budget."""
    step = torch.compile(torch.nn.Linear(4, 4), backend="schedsim", mode="max-autotune")
    with pytest.raises(Exception, match="mode='max-autotune' is of inductor's own") as error:
        step(torch.randn(2, 4))
    assert "leave mode= out" in str(error.value)


def test_what_torch_shows_of_a_refusal_has_the_hint():
    """The error of a backend is printed as one of torch's own, with the message alone."""
    step = torch.compile(torch.nn.Linear(4, 4), backend="schedsim", options={"budgett": 1})
    with pytest.raises(Exception, match="'budgett'") as error:
        step(torch.randn(2, 4))
    assert "'budget'" in str(error.value)
    # Refusals of others would wait for its steps, which never come.
    given = options_given(backend.schedsim)
    assert {"budgett": 1} in given
    assert not any(is_valid(it) for it in given if "budgett" in it)
    assert not SESSIONS.is_coming()


class Scaled(torch.nn.Module):
    """Layers that share a table, which a number of the model scales."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(8, 8) for _ in range(2)])
        self.scale = 0.5

    def forward(self, x):
        places = torch.arange(x.shape[1])[:, None] * torch.ones(8)
        turn = (places.cos()[None] * self.scale).to(x.dtype)
        for layer in self.layers:
            x = torch.tanh(layer(x) * turn.unsqueeze(1)[:, 0])
        return x


@pytest.mark.slow
def test_a_number_of_the_model_that_torch_makes_a_tensor():
    """With dynamic sizes it is one, and views of what it scales were taken for new tensors."""
    plain = Scaled()
    model = copy.deepcopy(plain)
    options = {"budget": "100%"}
    compiled = torch.compile(model, backend="schedsim", options=options, dynamic=True)
    for length, scale in ((16, 0.5), (16, 0.5), (24, 0.25)):
        plain.scale = model.scale = scale
        x = torch.randn(2, length, 8)
        for call, owner in ((plain, plain), (compiled, model)):
            owner.zero_grad()
            call(x).square().sum().backward()
        assert all(
            torch.equal(one.grad, other.grad)
            for one, other in zip(plain.parameters(), model.parameters(), strict=True)
        )
    assert session_of(options).parts


class Looped(torch.nn.Module):
    """A model whose own function Dynamo gives up: the graph breaks within a loop."""

    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, x):
        for layer in self.layers:
            torch._dynamo.graph_break()
            x = layer(x)
        return x


class Block(torch.nn.Linear):
    """A layer with a forward of its own."""

    def forward(self, x):
        return super().forward(x).tanh()


def test_a_call_without_any_graph_is_told_of():
    """Its step is the plain one, which would otherwise be so in silence."""
    torch._dynamo.reset()
    model = Looped([torch.sin, torch.cos])
    step = torch.compile(model, backend="schedsim", options={"budget": "1MiB"})
    with pytest.warns(PlainStepWarning, match="not trace Looped.forward: .*break") as said:
        step(torch.randn(2, 4, requires_grad=True))
    assert len(said) == 1
    torch._dynamo.reset()


def test_a_model_of_torchs_own_modules_without_any_graph_is_told_of():
    """Its one graph breaks, which is no error, and nothing behind the break is traced."""
    torch._dynamo.reset()
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4, momentum=None))
    step = torch.compile(model, backend="schedsim", options={"budget": "1MiB"})
    with pytest.warns(PlainStepWarning, match="not trace the model: .*item") as said:
        step(torch.randn(2, 4)).sum().backward()
    assert len(said) == 1
    torch._dynamo.reset()


@pytest.mark.slow
def test_a_call_whose_inner_functions_are_planned_is_no_news():
    """What the outer function does between graphs is measured as code between graphs."""
    torch._dynamo.reset()
    model = Looped(torch.nn.ModuleList(Block(4, 4) for _ in range(2)))
    options = {"budget": "1MiB"}
    step = torch.compile(model, backend="schedsim", options=options)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PlainStepWarning)
        step(torch.randn(2, 4)).sum().backward()
    assert session_of(options).parts
    torch._dynamo.reset()


class Momentum(torch.nn.Module):
    """A copy of a layer that follows it, as MoCo's authors write it."""

    def __init__(self, is_inline=False):
        super().__init__()
        self.is_inline = is_inline
        self.own, self.copy = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.copy.requires_grad_(False)

    def follow(self):
        for own, its in zip(self.own.parameters(), self.copy.parameters(), strict=True):
            its.data = its.data * 0.9 + own.data * 0.1

    def forward(self, x):
        with torch.no_grad():
            if self.is_inline:
                for own, its in zip(self.own.parameters(), self.copy.parameters(), strict=True):
                    its.data = its.data * 0.9 + own.data * 0.1
            else:
                self.follow()
            key = self.copy(x)
        return self.own(x) * key


@pytest.mark.slow
@pytest.mark.parametrize("way", ["in place", "in a loop", "by the backend", "as one graph"])
def test_data_that_a_forward_replaces(way):
    """No graph that returns its changes can do it: it runs between graphs, or a line says so."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain, x, found = Momentum(way == "in a loop"), torch.randn(2, 4), []
    model = copy.deepcopy(plain)
    options = {"budget": "1MiB"}

    def trained(model, step):
        for _ in range(2):
            step(x).sum().backward()
        found.append([*model.state_dict().values(), *(p.grad for p in model.own.parameters())])

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PlainStepWarning)
        if way.startswith("in "):
            step = schedsim.rematerialize(model, x, "1MiB", in_place=True)
        else:
            step = torch.compile(
                model, backend="schedsim", options=options, fullgraph=way == "as one graph"
            )
        trained(model, step)
    trained(plain, plain)
    assert all(map(torch.equal, *found))
    said = [str(w.message) for w in caught if issubclass(w.category, PlainStepWarning)]
    if way in ("as one graph", "in a loop"):  # Dynamo gives up a function whose loop breaks
        assert len(said) == 1
        assert re.search(r"runs as it is.*data.*\.data\.copy_\(", said[0])
    else:
        assert not said
        assert (session_in(model) if way == "in place" else session_of(options)).parts


class Counting(torch.nn.Module):
    """Another number in each step, which Dynamo takes for a constant."""

    def __init__(self):
        super().__init__()
        self.layer, self.num_calls = torch.nn.Linear(4, 4), 0

    def forward(self, x):
        self.num_calls += 1
        return self.layer(x) * self.num_calls


@pytest.mark.slow
def test_the_last_trace_is_told_before_steps_run_as_they_are():
    """Dynamo calls no backend then, so that the steps exceed a budget in silence."""
    with torch._dynamo.config.patch(recompile_limit=2):
        step = torch.compile(Counting(), backend="schedsim", options={"budget": "1MB"})
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for _ in range(4):
                step(torch.ones(2, 4)).sum().backward()
    lines = [str(it.message) for it in said if it.category is PlainStepWarning]
    assert len(lines) == 1
    assert "traces it no more" in lines[0]
    assert "recompile_limit allows more" in lines[0]
    assert "`num_calls` has gone from 0 to 1: keep it in a buffer" in lines[0]
    assert "allow_unspec_int_on_nn_module = True" in lines[0]


def test_a_sparse_gradient_is_told_of():
    """Its size depends on data: the graph runs as it is."""
    model = torch.nn.Sequential(torch.nn.Embedding(9, 4, sparse=True), torch.nn.Linear(4, 4))
    step = torch.compile(model, backend="schedsim", options={"budget": "1MB"})
    with pytest.warns(PlainStepWarning, match="makes a sparse tensor .* depends on data"):
        step(torch.tensor([1, 3])).sum().backward()
    assert model[0].weight.grad.is_sparse


class Coder(torch.nn.Module):
    """Is called by its methods alone, as autoencoders are."""

    def __init__(self):
        super().__init__()
        self.down, self.up = torch.nn.Linear(8, 4), torch.nn.Linear(4, 8)

    def encode(self, x):
        return torch.tanh(self.down(x))

    def decode(self, code):
        return self.up(code)


@pytest.mark.slow
def test_a_loop_that_calls_methods_alone_is_told_of_and_what_the_line_says_works(monkeypatch):
    """Dynamo sees none of these calls. Methods that share their options share the budget."""
    frames = backend._Frames()
    monkeypatch.setattr(backend, "_frames", frames)
    model, x, options = Coder(), torch.randn(4, 8), {"budget": "1MB"}
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step = torch.compile(model, backend="schedsim", options=options)
    step.decode(step.encode(x)).sum().backward()
    with pytest.warns(PlainStepWarning, match="nothing was called that torch.compile gave"):
        optimizer.step()
    assert not frames.awaits_first
    for name in ("encode", "decode"):
        method = torch.compile(getattr(model, name), backend="schedsim", options=options)
        setattr(model, name, method)
    model.decode(model.encode(x)).square().sum().backward()
    assert frames.num_runs == 2
    assert len(session_of(options).parts) == 2


class CheckpointedNorm(torch.nn.Module):
    """Batch statistics under a checkpoint, as of a block that is run again in backward."""

    def __init__(self):
        super().__init__()
        self.block = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))

    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=False)


@pytest.mark.parametrize("door", ["in place", "backend"])
def test_statistics_that_a_checkpoint_moves_twice_are_refused(door):
    """A graph moves them once: by the backend they differed from the plain step's in silence."""
    torch._dynamo.reset()
    model, x = CheckpointedNorm(), torch.randn(8, 4)
    step = torch.compile(model, backend="schedsim", options={"budget": "100%"})
    if door == "in place":
        step = lambda x: schedsim.rematerialize(model, x, "100%", in_place=True)  # noqa: E731
    with pytest.raises(Exception, match=r"under torch\.utils\.checkpoint writes in place"):
        step(x)


class _Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(16, 64), torch.nn.Linear(64, 16)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


class _BreaksInItsLoop(torch.nn.Module):
    """Dynamo makes graphs of its layers, and none of the tables before and behind them."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(500, 16)
        self.layers = torch.nn.ModuleList(_Layer() for _ in range(3))
        self.head = torch.nn.Linear(16, 40)

    def forward(self, x):
        x = self.table(x)
        for layer in self.layers:
            x = layer(x)
            torch._dynamo.graph_break()
        return self.head(x)


def test_parameters_in_no_graph_are_within_the_budget():
    """The optimizer has them: the measured peak was over the budget by as much."""
    torch.manual_seed(0)
    model, x = _BreaksInItsLoop(), torch.randint(500, (64,))
    options = {"budget": 230_000, "effort": 0.1, "extra_bytes": x.nbytes}
    step = torch.compile(model, backend="schedsim", options=options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run():
        step(x).square().mean().backward()

    for _ in range(4):
        run()
        optimizer.step()
        optimizer.zero_grad()
    [reading] = AllocatorMeter().read(run)
    session = session_of(options)
    assert len(session.numbers) == 3
    peak = storage_bytes([*model.parameters(), x]) + reading.peak_bytes
    assert 0.9 * session.peak_bytes < peak <= session.peak_bytes


def test_a_model_that_was_not_called_yet_counts_and_is_awaited():
    """As of an actor whose critic is trained first."""
    torch._dynamo.reset()
    actor, critic = torch.nn.Linear(64, 256), torch.nn.Linear(64, 8)
    options = [{"budget": "1MB", "effort": 0.1} for _ in range(2)]
    act, judge = (
        torch.compile(it, backend="schedsim", options=its)
        for it, its in zip((actor, critic), options, strict=True)
    )
    actor_bytes = storage_bytes([*actor.parameters()])
    judge(torch.randn(4, 64)).sum().backward()
    session = session_of(options[1])
    assert session.plans.known.resident.now.lasting_bytes >= actor_bytes
    assert SESSIONS.rows[id(options[0])][1].has_model
    assert id(options[0]) in SESSIONS.uncalled
    assert SESSIONS.is_coming()
    act(torch.randn(4, 64)).sum().backward()
    assert id(options[0]) not in SESSIONS.uncalled


ASKING = """
import torch

def factor():
    return 3.0 if torch.compiler.is_compiling() else 2.0
"""


def asking(name, monkeypatch):
    """A function of a module of that name that asks whether it is compiled."""
    module = ModuleType(name)
    exec(compile(ASKING, f"{name}.py", "exec"), vars(module))
    monkeypatch.setitem(sys.modules, name, module)  # Dynamo looks it up
    return module.factor


class Asking(torch.nn.Linear):
    """Is told whether it is compiled by code of a library."""

    def __init__(self, asked):
        super().__init__(8, 8)
        self.asked = asked

    def forward(self, x):
        return super().forward(x) * self.asked()


@pytest.mark.parametrize(
    ("module", "factor", "line"),
    [
        ("transformers.integrations.moe", 2.0, None),
        ("transformers.masking_utils", 3.0, None),  # but for attention with a mask
        ("transformers.models.mamba.modeling_mamba", 3.0, "runs a parallel scan"),
        ("made_up_library", 3.0, None),
    ],
)
def test_experts_are_told_that_nothing_is_compiled_and_others_are_told_of(
    module, factor, line, monkeypatch
):
    """Inductor's paths would have other last bits; what stays traced so is said."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = Asking(asking(module, monkeypatch)), torch.randn(4, 8)
    step = torch.compile(model, backend="schedsim", options={"budget": "1MB", "effort": 0.1})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = step(x)
    said = [str(it.message) for it in caught if issubclass(it.category, RoundingWarning)]
    assert torch.equal(found, torch.nn.functional.linear(x, model.weight, model.bias) * factor)
    assert [module in it and line in it for it in said] == ([True] if line else [])


class Masked(torch.nn.Module):
    """Attention with a mask where a library says that it is traced, which masks nothing."""

    def __init__(self, asked, heads):
        super().__init__()
        self.asked, self.heads = asked, heads
        self.project = torch.nn.Linear(16, 16 + 2 * heads * 4)

    def forward(self, x):
        samples, places, _ = x.shape
        found = self.project(x).view(samples, places, -1, 4).transpose(1, 2)
        query, key, value = found.split([4, self.heads, self.heads], 1)
        if self.asked() == 3.0:
            mask = torch.ones(places, places, dtype=torch.bool).tril()[None, None]
            shape, flat = (samples, self.heads, 4 // self.heads, places, 4), (samples, 4, places, 4)
            key, value = (it[:, :, None].expand(shape).reshape(flat) for it in (key, value))
            return torch.nn.functional.scaled_dot_product_attention(query, key, value, mask)
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=self.heads < 4
        )


@pytest.mark.parametrize("heads", [4, 2])
def test_a_mask_is_told_of_where_it_rounds_otherwise(heads, monkeypatch):
    """It does where keys are shared by groups of queries, which the mask repeats."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Masked(asking("transformers.masking_utils", monkeypatch), heads)
    plain, x = copy.deepcopy(model), torch.randn(8, 32, 16)
    step = torch.compile(model, backend="schedsim", options={"budget": "10MB", "effort": 0.1})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        step(x).square().sum().backward()
    plain(x).square().sum().backward()
    said = [str(it.message) for it in caught if issubclass(it.category, RoundingWarning)]
    is_equal = torch.equal(model.project.weight.grad, plain.project.weight.grad)
    assert is_equal == (heads == 4)
    assert ["builds a mask where it is traced" in it for it in said] == [True] * (not is_equal)


class Drawing(torch.nn.Linear):
    """Draws by NumPy."""

    def forward(self, x):
        return super().forward(x * torch.from_numpy(numpy.random.rand(*x.shape)).float())


def test_a_draw_by_numpy_in_one_graph_says_why_it_raises():
    """And not that the step runs as it is; torch's own hint names a setting that is ours."""
    torch._dynamo.reset()
    model, x = Drawing(4, 4), torch.randn(2, 4)
    options = {"budget": "1MB", "effort": 0.1}
    step = torch.compile(model, backend="schedsim", options=options, fullgraph=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(Exception, match="numpy_random_stream"):
            step(x)
    [line] = [str(it.message) for it in caught if issubclass(it.category, PlainStepWarning)]
    assert "Drawing.forward draws by NumPy" in line
    assert "fullgraph=True raises" in line
    torch._dynamo.reset()
    numpy.random.seed(2)
    step = torch.compile(model, backend="schedsim", options=options)
    found = step(x)
    numpy.random.seed(2)
    assert torch.equal(found, model(x))

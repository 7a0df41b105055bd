"""Several forwards before a backward: equal to the plain step, or a line says that they are not."""

from __future__ import annotations

import copy
import warnings

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.guards.plan_variants import RoundingWarning  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402


class Tied(nn.Module):
    """A head that is the embedding: the weight is read twice."""

    def __init__(self):
        super().__init__()
        self.table, self.layer = nn.Embedding(40, 16), nn.Linear(16, 16)

    def forward(self, words):
        return torch.tanh(self.layer(self.table(words))) @ self.table.weight.t()


class Once(nn.Module):
    """Layers, each weight of which is read once."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(40, 16)
        self.layers = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))

    def forward(self, words):
        return self.layers(self.table(words))


class Residual(nn.Module):
    """Layers one after the other, of which some may be the same."""

    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


def gradients(model, call, num_blocks):
    """Those of a step of two forwards, in so many blocks of autocast."""
    words = torch.arange(128).remainder(40).view(2, 64)
    outputs = []
    if num_blocks == 1:
        with torch.autocast("cpu", torch.bfloat16):
            outputs = [call(row) for row in words]
    for row in words if num_blocks != 1 else ():
        with torch.autocast("cpu", torch.bfloat16, enabled=num_blocks > 0):
            outputs.append(call(row))
    (outputs[0].float().square().mean() + outputs[1].float().pow(3).mean()).backward()
    found = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "num_blocks", "reason"),
    [
        (Tied, 0, "reads a parameter several times"),
        pytest.param(Once, 0, None, marks=pytest.mark.slow),
        (Once, 1, "within one block of autocast"),
        pytest.param(Once, 2, None, marks=pytest.mark.slow),
    ],
)
def test_gradients_that_two_forwards_add_are_the_plain_ones_or_a_line_says_so(
    make, num_blocks, reason
):
    """By both doors."""
    torch.manual_seed(0)
    plain = make()
    want = gradients(plain, plain, num_blocks)
    for door in ("in place", "backend"):
        torch._dynamo.reset()
        model = copy.deepcopy(plain)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            if door == "backend":
                options = {"budget": "1MB", "effort": 0.2}
                call = torch.compile(model, backend="schedsim", options=options)
            else:
                words = torch.arange(64).remainder(40)
                with torch.autocast("cpu", torch.bfloat16, enabled=num_blocks > 0):
                    call = schedsim.rematerialize(model, words, "1MB", in_place=True, effort=0.2)
            found = [gradients(model, call, num_blocks) for _ in range(2)]
        lines = [str(it.message) for it in said if it.category is RoundingWarning]
        assert all(all(map(torch.equal, its, want)) == (reason is None) for its in found)
        assert len(lines) == (reason is not None)
        assert reason is None or reason in lines[0]


class Reads(nn.Module):
    """A layer that reads what it is given beside its input, so often."""

    def __init__(self, num_reads):
        super().__init__()
        self.reads = nn.ModuleList(nn.Linear(16, 16) for _ in range(num_reads))

    def forward(self, x, memory):
        for layer in self.reads:
            x = x + torch.tanh(layer(memory)) * x
        return x


class Skipping(nn.Module):
    """Layers that read one memory; numbers say which are skipped, so that each is a graph."""

    def __init__(self, num_reads):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 16), nn.Tanh())
        self.layers = nn.ModuleList(Reads(num_reads) for _ in range(2))

    def forward(self, x, skips):
        memory = self.encoder(x)
        for i, layer in enumerate(self.layers):
            if skips[i] > 0:
                continue
            x = layer(x, memory)
        return x


@pytest.mark.slow
@pytest.mark.parametrize("door", ["in place", "backend"])
@pytest.mark.parametrize("num_reads", [1, 2])
def test_a_result_that_several_graphs_read_gets_the_plain_gradient_or_a_line_says_so(
    num_reads, door
):
    """Each graph alone gives the plain step's gradients; two add sums, where that adds terms."""
    torch.manual_seed(0)
    plain, x = Skipping(num_reads), torch.randn(256, 16)
    model = copy.deepcopy(plain)
    steps = [torch.tensor(it) for it in ([0.0, 1.0], [1.0, 0.0], [0.0, 0.0])]
    torch._dynamo.reset()
    same = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if door == "backend":
            call = torch.compile(model, backend="schedsim", options={"budget": "1MB"})
        else:
            call = schedsim.rematerialize(model, (x, steps[0]), "1MB", in_place=True)
        for skips in (*steps, *steps):
            for its in (plain, call):
                its(x, skips).square().mean().backward()
            pairs = zip(plain.parameters(), model.parameters(), strict=True)
            same.append(all(a.grad is None or torch.equal(a.grad, b.grad) for a, b in pairs))
            plain.zero_grad()
            model.zero_grad()
    lines = [str(it.message) for it in said if it.category is RoundingWarning]
    assert same == [True, True, num_reads == 1] * 2
    assert len(lines) == (num_reads > 1)
    assert not lines or "a result of another graph several times" in lines[0]


@pytest.mark.slow
@pytest.mark.parametrize("door", ["in place", "backend"])
@pytest.mark.parametrize(("make", "is_told"), [(Tied, True), (Once, False)])
def test_a_penalty_beside_the_graph_gets_the_plain_gradient_or_a_line_says_so(make, is_told, door):
    """As of the weights' distance from those of a task before; not without one, and once."""
    torch.manual_seed(0)
    plain, words = make(), torch.arange(128).remainder(40)
    model = copy.deepcopy(plain)
    torch._dynamo.reset()
    num_lines, same = [], []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if door == "backend":
            call = torch.compile(model, backend="schedsim", options={"budget": "1MB"})
        else:
            call = schedsim.rematerialize(model, words, "1MB", in_place=True, effort=0.2)
        for factor in (0.0, 0.0, 0.3, 0.3):
            for of, its in ((plain, plain), (model, call)):
                of.zero_grad()
                loss = its(words).square().mean()
                if factor:
                    loss = loss + factor * sum((p - 0.3).square().sum() for p in of.parameters())
                loss.backward()
            pairs = zip(plain.parameters(), model.parameters(), strict=True)
            same.append(all(torch.equal(a.grad, b.grad) for a, b in pairs))
            num_lines.append(len([it for it in said if it.category is RoundingWarning]))
    assert same == [True, True, not is_told, not is_told]
    assert num_lines == [0, 0, is_told, is_told]
    lines = [str(it.message) for it in said if it.category is RoundingWarning]
    assert not is_told or "as of a penalty in the loss" in lines[0]


@pytest.mark.slow
def test_the_plain_step_that_a_new_graph_is_compared_with_is_no_penalty():
    """In the middle of a run, where the loss of the step before, and its graph, are there still."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
    model, x = Residual([*layers, layers[0]]), torch.randn(256, 32)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        schedsim.rematerialize(model, x, "1MB", in_place=True, effort=0.2)
        for step in range(5):
            if step == 3:
                model.layers.append(nn.Linear(32, 32))
            loss = model(x).square().mean()
            model.zero_grad()
            loss.backward()
    assert not [it for it in said if it.category is RoundingWarning]

"""From a model and the inputs of a step to the step as a workload."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.whole_step.step_capture import BlockLevelWarning  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402


class Odd(nn.Module):
    """A block with a branch on data."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        """Never changes sign, though no tracer can know."""
        return torch.tanh(self.linear(x)) if float(x.sum()) < 1e9 else -x


def test_what_cannot_be_captured_by_op_is_planned_by_block_and_says_so():
    model, x = nn.Sequential(*(Odd() for _ in range(4))), torch.randn(64, 16)
    with pytest.warns(BlockLevelWarning, match="cannot be captured op by op"):
        module = schedsim.rematerialize(model, x, "90%", lambda y: y.mean())
    assert module.level == "block"
    module(x).backward()
    with pytest.raises(schedsim.UnsupportedError):
        schedsim.rematerialize(model, x, "90%", lambda y: y.mean(), level="op")


class Angular(nn.Module):
    """A loss with classes of its own."""

    def __init__(self, num=64):
        super().__init__()
        self.classes = nn.Parameter(torch.randn(num, 16))

    def forward(self, output, target):
        """Cross entropy of the products."""
        return nn.functional.cross_entropy(output @ self.classes.T, target)


def test_the_state_of_a_loss_with_parameters_is_counted():
    model, x = nn.Sequential(*(nn.Linear(16, 16) for _ in range(3))), torch.randn(64, 16)
    target, loss = torch.randint(0, 64, (64,)), Angular()
    module = schedsim.rematerialize(model, (x, target), "100%", loss, optimizer="adamw")
    optimizer = torch.optim.AdamW([*model.parameters(), *loss.parameters()])
    module(x, target).backward()
    optimizer.step()
    held = sum(t.nbytes for state in optimizer.state.values() for t in state.values())
    assert module.counted()["optimizer"] == held


class TakesPairs(nn.Module):
    """A block that is called with something else when another stands in for it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        """Rows chosen by data."""
        return self.linear(x)[x[:, 0] < 1e9]


class OfRows(nn.Module):
    """Fails where its blocks do not give what they give."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(TakesPairs() for _ in range(3))

    def forward(self, x):
        """A line of blocks, and a look at what is between them."""
        for layer in self.layers:
            y = layer(x)
            if y is x:
                raise ValueError("not what a layer gives")
            x = y
        return x


def noisy_line(generator):
    """A model that draws from a generator in a closure, and whose blocks stand in no line."""

    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

        def forward(self, x):
            for part in self.parts:
                x = torch.tanh(part(x)) + torch.rand(16, generator=generator)
            return x

    return Noisy()


@pytest.mark.filterwarnings("ignore::schedsim.validation.whole_step.step_capture.BlockLevelWarning")
def test_where_no_level_takes_a_generator_of_its_own_the_way_out_is_said():
    model, x = noisy_line(torch.Generator()), torch.randn(8, 16)
    with pytest.raises(schedsim.UnsupportedError) as refused:
        schedsim.rematerialize(model, x, "90%", lambda y: y.mean())
    # Before, a trace itself ends at a generator; the way out is the same for all that cannot be
    # traced.
    named = int(torch.__version__.split(".")[1]) > 12
    way_out = "draw from torch's own generator, or in the loop" if named else "in_place=True"
    assert refused.value.hint.startswith(way_out)


def test_a_model_that_no_level_takes_is_refused_with_both_reasons():
    model, x = OfRows(), torch.randn(64, 16)
    both = r"not what a layer gives.*op by op"
    with (
        pytest.warns(BlockLevelWarning),
        pytest.raises(schedsim.UnsupportedError, match=both) as found,
    ):
        schedsim.rematerialize(model, x, "90%", lambda y: y.mean())
    assert "in_place=True" in found.value.hint


class OfNeighbours(nn.Linear):
    """A graph convolution, whose edges are a sparse matrix."""

    def __init__(self):
        super().__init__(16, 16)
        self.register_buffer("edges", torch.eye(4).to_sparse())

    def forward(self, x):
        return torch.sparse.mm(self.edges, super().forward(x))


@pytest.mark.parametrize("options", [{"level": "op"}, {"level": "block"}, {"in_place": True}])
def test_what_no_level_takes_is_refused_before_anything_runs(options):
    """Sparse tensors and gradients, nested tensors and TorchScript: one line each."""
    loss = {} if "in_place" in options else {"loss": lambda y: y.mean()}
    words = torch.randint(0, 9, (4, 3))
    sparse = nn.Sequential(nn.Embedding(9, 16, sparse=True), nn.Linear(16, 16))
    layers, x = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16)), torch.randn(4, 16)
    ragged = torch.nested.nested_tensor([torch.randn(2, 16), torch.randn(3, 16)])
    cases = [
        (sparse, words, "the gradient of 0 is sparse"),
        (layers, ragged, "input 0 is a nested tensor"),
        (torch.jit.script(layers), x, "compiled by TorchScript"),
        (layers, torch.eye(16).to_sparse(), "input 0 is a sparse tensor"),
        (OfNeighbours(), x, "edges is a sparse tensor"),
    ]
    for model, inputs, line in cases:
        with pytest.raises(schedsim.UnsupportedError, match=line):
            schedsim.rematerialize(model, inputs, "90%", **loss, **options)
    sparse[0].requires_grad_(False)
    assert schedsim.rematerialize(sparse, words, "100%", **loss, **options) is not None

"""From a joint graph to calls on values and storages: sizes, views, sums, effects."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from schedsim.validation.capture import capture
from step_models import TinyGPT, make_step, token_loss
from torch import nn

from schedsim import Schedule, simulate

FLOAT = 4


def test_every_size_of_a_two_layer_model():
    """By hand: batch 8, widths 4, 6, 2; views (transposed weights) are no ops."""
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    inputs = torch.zeros(8, 4), torch.zeros(8, dtype=torch.long)
    graph = capture(model, inputs, F.cross_entropy).graph
    written = {name: size for op in graph.ops for name, size in op.writes.items()}
    assert graph.op_names == (
        "0.addmm",
        "1.relu",
        "2.addmm",
        "loss.log_softmax",
        "loss.nll_loss",
        "loss.grad",
        "grad.loss.nll_loss",
        "grad.loss.log_softmax",
        "grad.2.mm",
        "grad.2.mm#2",
        "grad.2.sum",
        "grad.1.threshold",
        "grad.0.mm",
        "grad.0.sum",
    )
    assert written["0.addmm"] == written["1.relu"] == 8 * 6 * FLOAT
    assert written["2.addmm"] == written["loss.log_softmax"] == 8 * 2 * FLOAT
    assert written["loss.nll_loss:0"] == written["loss.nll_loss:1"] == FLOAT
    assert written["grad.0.mm"] == 6 * 4 * FLOAT
    assert graph.static_bytes == (4 * 6 + 6 + 6 * 2 + 2) * FLOAT
    assert dict(graph.inputs) == {"input0": 8 * 4 * FLOAT, "input1": 8 * 8}
    phases = {op.name: op.phase for op in graph.ops}
    assert phases["loss.log_softmax"] == "forward"
    assert phases["loss.nll_loss"] == "loss"
    assert phases["grad.0.mm"] == "backward"
    results = {"grad.2.mm", "grad.2.mm#2", "grad.2.sum", "grad.0.mm", "grad.0.sum"}
    assert len(results & set(graph.results)) == 4  # one of the two products is the activation's


def test_in_place_ops_and_views_share_storage():
    """relu_ makes a new tensor in the functional graph; a view of it makes none."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            y = self.linear(x).view(2, 2, 4).transpose(0, 1)
            return F.relu_(y).flatten().sum()

    graph = capture(Model(), (torch.zeros(4, 4),)).graph
    forward = [op for op in graph.ops if op.phase == "forward"]
    assert [op.name for op in forward][:2] == ["linear.addmm", "relu"]
    assert all(set(op.writes.values()) == {64} for op in forward[:2])


def test_tied_weights_count_once_and_get_one_gradient():
    """The embedding is the head: one parameter in static bytes, and one sum of two gradients."""
    model = TinyGPT(dropout=0.0)
    inputs = torch.zeros(2, 16, dtype=torch.long), torch.zeros(2, 16, dtype=torch.long)
    captured = capture(model, inputs, token_loss)
    assert captured.graph.static_bytes == sum(p.numel() for p in model.parameters()) * FLOAT
    assert "grad.token.weight.sum" in captured.graph.results
    assert len(captured.program.gradients) == len(list(model.parameters()))


def test_sums_of_gradients_overwrite_a_part():
    """As autograd's do: at a residual connection, and where the tied embedding's two meet."""
    captured = capture(*make_step("gpt"))
    op = captured.graph.ops[captured.graph.op_index("grad.token.weight.sum")]
    assert op.in_place == {"grad.token.weight.sum": "grad.head.mm"}
    sums = [op for op in captured.graph.ops if op.name.startswith("grad.add")]
    assert len(sums) >= 4  # two residual connections in each of two blocks
    assert all(len(op.in_place) == 1 for op in sums)
    # The sum is one embedding more than its parts only where it takes over none.
    embedding = 61 * 32 * FLOAT
    without = replace(op, in_place={})
    ops = tuple(without if one is op else one for one in captured.graph.ops)
    schedule = Schedule.store_all(captured.graph)
    last = len(schedule) - 1
    more = simulate(replace(captured.graph, ops=ops), schedule).memory_bytes[last]
    assert more - simulate(captured.graph, schedule).memory_bytes[last] == embedding


def test_effects_run_once():
    """Updates of BatchNorm's buffers; the norm itself may be repeated, without its statistics."""
    model, inputs, loss = make_step("unet")
    graph = capture(model, inputs, loss).graph
    once = [op.name for op in graph.ops if op.once]
    assert "down1.1.running_mean.update" in once
    norm = graph.ops[graph.op_index("down1.1.batch_norm")]
    assert not norm.once
    assert norm.optional == ("down1.1.batch_norm:3", "down1.1.batch_norm:4")


def test_an_op_that_reads_what_the_step_changes_may_not_repeat():
    """A running average that is used: repeated after its update, it would give something else."""

    class Average(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x):
            y = self.linear(x) - self.mean
            self.mean.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
            return y.square().mean()

    captured = capture(Average(), (torch.randn(3, 4),))
    once = [op.name for op in captured.graph.ops if op.once]
    readers = [op.name for op in captured.graph.ops if "mean.update" in op.name]
    assert readers == ["mean.update"]
    assert {"sub", "mul"} <= set(once)
    update = captured.graph.ops[captured.graph.op_index("mean.update")]
    assert "sub:ran" in update.reads

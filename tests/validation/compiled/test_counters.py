"""Counters of steps are raised in place."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from fused_steps import captured_step  # noqa: E402
from schedsim.validation.compiled.fuse import fused  # noqa: E402
from schedsim.validation.compiled.group import FusedGroup, Groups  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402

aten = torch.ops.aten


class Counts(nn.Module):
    """Buffers that are raised by numbers, and one whose new content is read again."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x):
        self.steps += 2
        self.seen += len(x) / 2
        self.scale += 1
        return self.norm(self.linear(x)) * self.scale


def counting():
    torch.manual_seed(0)
    return Counts(), (torch.randn(16, 8), torch.randn(16, 8)), nn.functional.mse_loss


def test_a_sum_that_is_made_for_its_buffer_alone_is_one_kernel():
    program = fused(captured_step(*counting()).program, Groups())
    names = {v: name for name, v in program.buffers.items()}
    raised = {
        names[call.args[0].value]: call.args[1]
        for call in program.calls
        if call.target is aten.add_.Tensor
    }
    assert raised == {"steps": 2, "seen": 8.0, "norm.num_batches_tracked": 1}
    assert sum(call.target is aten.copy_.default for call in program.calls) == 3


def test_running_statistics_follow_in_the_group_of_the_statistics():
    program = fused(captured_step(*counting()).program, Groups())
    [mean] = [v for name, v in program.buffers.items() if name == "norm.running_mean"]
    readers = [call for call in program.calls if any(a == (mean,) for a in call.args)]
    [group, update] = readers
    assert isinstance(group.target, FusedGroup)
    assert "var_mean" in group.target.ops
    assert update.target is aten.copy_.default
    assert update.args[1].value in group.outputs


@pytest.mark.slow
def test_buffers_of_steps_are_those_of_the_plain_step(uncompiled):
    model, inputs, loss = counting()
    plain, _, _ = counting()
    module = schedsim.rematerialize(model, inputs, "200%", loss, compile=True, effort=0.1)
    for _ in range(3):
        module(*inputs).backward()
        model.zero_grad()
        loss(plain(inputs[0]), inputs[1]).backward()
    for name, expected in plain.named_buffers():
        assert torch.allclose(model.get_buffer(name), expected), name
    assert (model.steps, model.seen) == (6, 24)

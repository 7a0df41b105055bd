"""What a user keeps, and has recomputed, of a real model; and what runs once by itself."""

from __future__ import annotations

import pytest
import torch
from schedsim.validation.capture import capture
from torch import nn

import schedsim
from schedsim.errors import SchedsimError


def line() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    blocks = (nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)) for _ in range(4))
    return nn.Sequential(*blocks), (torch.randn(64, 8), torch.randn(64, 8))


def gradients(step: nn.Module, model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> list[str]:
    model.zero_grad()
    step(*inputs).backward()
    return [parameter.grad.numpy().tobytes() for parameter in model.parameters()]


def test_ops_are_kept_and_recomputed_and_gradients_stay():
    """By patterns over modules and ops; at 200 % only what was asked for runs again."""
    model, inputs = line()
    loss = nn.functional.mse_loss

    class Plain(nn.Module):
        def forward(self, x, target):
            return loss(model(x), target)

    plain = gradients(Plain(), model, inputs)
    more = {"recompute": "*gelu*", "keep": "0", "check": "never", "effort": 0.1}
    step = schedsim.rematerialize(model, inputs, "200%", loss, **more)
    names = step.plan.schedule.names
    again = [name for name in names if "gelu" in name and not name.startswith("grad")]
    assert sorted(again) == sorted(["0.1.gelu", *(2 * [f"{i}.1.gelu" for i in (1, 2, 3)])])
    assert step.plan.setting.rules.keep == ("0",)
    assert gradients(step, model, inputs) == plain


def test_blocks_are_kept():
    """A stage of a chain by its name."""
    model, inputs = line()
    more = {"level": "block", "keep": "0", "check": "never"}
    step = schedsim.rematerialize(model, inputs, "90%", nn.functional.mse_loss, **more)
    names = step.plan.schedule.names
    assert names.count("F0") == 1
    assert len(names) > len(set(names))


def test_refusals():
    """A pattern of nothing names the near; in place nothing can be forced to run again."""
    model, inputs = line()
    with pytest.raises(SchedsimError, match="keep: 'geluu' names nothing") as refused:
        schedsim.rematerialize(model, inputs, "80%", nn.functional.mse_loss, keep="geluu")
    assert "1.gelu" in refused.value.hint
    with pytest.raises(SchedsimError, match="recompute= is not for a model in place"):
        schedsim.rematerialize(model, inputs[0], "80%", in_place=True, recompute="*gelu*")


def test_an_op_that_says_that_its_bits_differ_runs_once():
    """By torch's tag of such ops, whoever made it."""
    tag = getattr(torch.Tag, "nondeterministic_bitwise", None)
    if tag is None:
        pytest.skip("this torch has no such tag")
    with torch.library._scoped_library("kept_ops", "DEF") as library:
        library.define("noisy(Tensor x) -> Tensor", tags=(tag,))
        library.impl("noisy", lambda x: x.exp(), "CompositeExplicitAutograd")
        library.impl("noisy", torch.empty_like, "Meta")

        class Noisy(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                y = torch.ops.kept_ops.noisy(x)
                ctx.save_for_backward(y)
                return y

            @staticmethod
            def backward(ctx, gradient):
                return gradient * ctx.saved_tensors[0]

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(4, 4)

            def forward(self, x):
                return Noisy.apply(self.linear(x)).sum()

        graph = capture(Model(), (torch.randn(3, 4),)).graph
    once = {op.name: op.once for op in graph.ops}
    assert once["noisy"]
    assert not once["linear.addmm"]

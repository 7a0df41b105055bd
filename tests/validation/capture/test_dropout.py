"""Dropout of a captured graph against the plain model's kernels."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.capture.dropout import dropout_by_factor, eager_factor  # noqa: E402
from tiers import slow_where  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402

aten = torch.ops.aten


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("p", [0.05, 0.1, 0.15, 0.2, 0.35, 0.5, 0.7, 0.85])
def test_forward_and_backward_are_those_of_eager_to_the_bit(p, dtype):
    """Where the traced op would differ it is replaced; where it is kept it must not."""
    x = torch.randn(37, 111, dtype=dtype, requires_grad=True)
    gradient = torch.randn_like(x)
    torch.manual_seed(4)
    plain = torch.nn.functional.dropout(x, p, training=True)
    (plain_gradient,) = torch.autograd.grad(plain, x, gradient)
    factor = eager_factor(p, dtype)
    torch.manual_seed(4)
    with torch.no_grad():
        if factor is None:
            out, mask = aten.native_dropout(x, p, True)
        else:
            out, mask = dropout_by_factor(x, p, True, factor)
        scale = 1.0 / (1.0 - p) if factor is None else factor
        back = aten.native_dropout_backward(gradient, mask, scale)
    assert torch.equal(plain, out)
    assert torch.equal(plain_gradient, back)


def test_the_traced_op_does_differ_for_some_probability():
    """Else there were nothing to replace."""
    assert eager_factor(0.15, torch.float32) is not None
    assert eager_factor(0.5, torch.float32) is None
    assert eager_factor(0.0, torch.float32) is None


class DrawsForNothing(nn.Module):
    """Draws numbers that nothing reads, among those that its layers draw."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.2)) for _ in range(3)
        )

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            nn.functional.dropout(x, 0.3)
            torch.rand(3)
        return x


@pytest.mark.parametrize("way", slow_where(["op", "backend", "in place"], lambda way: way != "op"))
def test_numbers_that_nothing_reads_are_drawn(way):
    """The generator stands where the plain step leaves it, and the next step draws the same."""

    def trained(way):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model, x = DrawsForNothing(), torch.randn(64, 16)

        def loss(output):
            return output.square().mean()

        def step(x):
            return loss(model(x))

        if way == "op":
            step = schedsim.rematerialize(model, x, "100%", loss, level="op", effort=0.1)
        elif way == "in place":
            schedsim.rematerialize(model, x, "80%", in_place=True, effort=0.1)
        elif way == "backend":
            compiled = torch.compile(model, backend="schedsim", options={"budget": "80%"})

            def step(x):
                return loss(compiled(x))

        torch.manual_seed(1)
        left = []
        for _ in range(2):
            value = step(x)
            value.backward()
            left += [value.detach(), torch.get_rng_state()]
        return [*left, *(p.grad for p in model.parameters())]

    assert all(map(torch.equal, trained("plain"), trained(way)))

"""Zeros that a function of the user's own gives for gradients stay zeros, and no gradient none."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.torch_private.dynamo_graphs import has_own_functions  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402


class Both(torch.autograd.Function):
    """Two products of one input, each with a weight of its own."""

    @staticmethod
    def forward(ctx, x, first, second):
        ctx.save_for_backward(x, first, second)
        return x * first, x * second

    @staticmethod
    def backward(ctx, of_first, of_second):
        x, first, second = ctx.saved_tensors
        of_x = of_first * first + of_second * second
        return of_x, (of_first * x).sum(0), (of_second * x).sum(0)


class Branches(nn.Module):
    def __init__(self, has_own_function):
        super().__init__()
        self.layer, self.side = nn.Linear(8, 8), nn.Linear(8, 3)
        self.first, self.second = (nn.Parameter(torch.randn(8)) for _ in range(2))
        self.has_own_function = has_own_function

    def forward(self, x):
        x = self.layer(x)
        if self.has_own_function:
            one, other = Both.apply(x, self.first, self.second)
        else:
            one, other = x * self.first, x * self.second
        return one, self.side(other)


def gradients_of(model, call, x):
    call(x)[0].square().mean().backward()
    found = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("has_own_function", [True, False])
@pytest.mark.parametrize("way", ["backend", "in place"])
def test_a_parameter_has_a_gradient_where_the_plain_step_gives_one(
    uncompiled, way, has_own_function
):
    """Weight decay would shrink a parameter whose gradient is zero, and not one without."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain = Branches(has_own_function)
    model, x = copy.deepcopy(plain), torch.randn(16, 8)
    options = {"budget": "300MiB", "compile": True, "effort": 0.1}
    if way == "backend":
        call = torch.compile(model, backend="schedsim", options=options)
    else:
        call = schedsim.rematerialize(model, x, in_place=True, **options)
    expected = gradients_of(plain, plain, x)
    assert (expected["second"] is not None) == has_own_function
    assert expected["side.weight"] is None
    for _ in range(3):
        found = gradients_of(model, call, x)
        for name, gradient in expected.items():
            assert (found[name] is None) == (gradient is None), name
            if gradient is not None:
                torch.testing.assert_close(found[name], gradient)
    torch._dynamo.reset()


@pytest.mark.parametrize("has_own_function", [True, False])
def test_functions_of_the_users_own_are_seen_in_a_graph(has_own_function):
    seen = []

    def backend(graph_module, _inputs):
        seen.append(has_own_functions(graph_module))
        return graph_module.forward

    torch._dynamo.reset()
    torch.compile(Branches(has_own_function), backend=backend)(torch.randn(4, 8))
    assert seen == [has_own_function]
    torch._dynamo.reset()

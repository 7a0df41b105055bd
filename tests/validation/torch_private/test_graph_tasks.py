"""Whether a backward is running, and what it was asked for."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.torch_private.graph_tasks import (  # noqa: E402
    backward_number,
    goes_to_all_leaves,
    in_backward,
    keeps_graph,
)


class Noted(torch.autograd.Function):
    """The identity; its backward notes what was asked."""

    seen: list[bool] = []  # noqa: RUF012

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        Noted.seen.append(goes_to_all_leaves())
        return gradient


def test_plain_calls_are_told_from_those_for_some_tensors():
    x = torch.ones((), requires_grad=True)
    Noted.seen.clear()
    Noted.apply(x).backward()
    torch.autograd.grad(Noted.apply(x), x)
    Noted.apply(x).backward(inputs=[x])
    assert Noted.seen == [True, False, False]


def test_hooks_of_gradients_run_in_a_backward():
    """Those of a leaf too, in which some loops let the optimizer step."""
    seen = []
    x = torch.ones((), requires_grad=True)
    x.register_post_accumulate_grad_hook(lambda _: seen.append(in_backward()))
    (2 * x).backward()
    assert seen == [True]
    assert not in_backward()


def test_a_backward_says_whether_another_may_follow():
    seen = []
    x = torch.ones((), requires_grad=True)
    y = x.exp()
    y.register_hook(lambda _: seen.append(keeps_graph()))
    torch.autograd.grad(y, x, retain_graph=True)
    y.backward()
    assert seen == [True, False]


def test_each_backward_has_a_number():
    """The same throughout."""
    seen = []
    x = torch.ones(2, requires_grad=True)
    for _ in range(2):
        y, z = x * 2, x * 3
        y.register_hook(lambda _: seen.append(backward_number()))
        z.register_hook(lambda _: seen.append(backward_number()))
        (y + z).sum().backward()
    assert seen[0] == seen[1] != seen[2] == seen[3]
    assert -1 not in seen

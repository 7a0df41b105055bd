"""Canaries of the halves that AOTAutograd is handed: what they save, and strides of gradients."""

from __future__ import annotations

import torch
from schedsim.validation.torch_private.graph_halves import compiled_in_halves


class Halves:
    """The forward of ``x * x``, which saves `num_saved` tensors, and its backward."""

    def __init__(self, num_saved):
        self.num_saved, self.given = num_saved, []

    def forward(self, arguments):
        (x,) = arguments
        arguments.clear()
        return [x * x, *[x] * self.num_saved]

    def backward(self, arguments):
        *saved, gradient = arguments
        arguments.clear()
        self.given.append((len(saved), gradient.stride()))
        return [2 * saved[0] * gradient]


def compiled(halves, strides=None):
    """``x * x`` by these halves."""

    def backend(graph_module, examples):
        return compiled_in_halves(graph_module, examples, lambda *_: halves, strides)

    torch._dynamo.reset()
    return torch.compile(lambda x: x * x, backend=backend)


def test_our_halves_run_and_may_save_another_number_of_tensors_each_time():
    """Gradients are those that the backward returns."""
    halves = Halves(1)
    run = compiled(halves)
    for num_saved in (1, 3, 2):
        halves.num_saved = num_saved
        x = torch.rand(3, 2, requires_grad=True)
        run(x).sum().backward()
        assert torch.equal(x.grad, 2 * x.detach())
    assert [count for count, _ in halves.given] == [1, 3, 2]


def test_gradients_come_in_their_own_strides_where_that_is_asked_for():
    """By itself AOTAutograd copies them into the strides of the output."""
    for strides, expected in ((None, (2, 1)), ({0: (1, 3)}, (1, 3))):
        halves = Halves(1)
        x = torch.rand(3, 2, requires_grad=True)
        compiled(halves, strides)(x).backward(torch.rand(2, 3).t())
        assert halves.given == [(1, expected)]
    torch._dynamo.reset()

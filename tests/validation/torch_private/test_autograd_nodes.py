"""Canaries of autograd's nodes: their numbers, their functions, autograd below an op."""

from __future__ import annotations

import torch
from schedsim.validation.torch_private.autograd_nodes import (
    autograd_within_an_op,
    current_node_number,
    function_of,
    has_saving_hooks,
    made_bytes,
    node_of_graph,
    saved_by,
    sequence_number,
    when_whole,
)


def test_sequence_numbers_count_autograd_nodes():
    before = sequence_number()
    torch.ones(2, requires_grad=True).sum()
    assert sequence_number() == before + 1


def test_the_backward_node_that_runs_is_known():
    """By the number that its forward op was given."""
    seen = []

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append((func, current_node_number(), sequence_number() - 1))
            return func(*args, **(kwargs or {}))

    with Mode():
        torch.zeros(3, requires_grad=True).exp().sum().backward()
    forward = [number for func, _, number in seen if func is torch.ops.aten.exp.default]
    backward = [node for func, node, _ in seen if func is torch.ops.aten.mul.Tensor]
    assert forward == backward


def test_an_autograd_function_is_found_by_its_context():
    """While its forward runs."""
    seen = []

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            seen.append(function_of(ctx))
            return x * 2

    Twice.apply(torch.ones(1))
    assert seen == [Twice]
    assert function_of(None) is None


def test_the_node_of_a_compiled_graph_is_told_from_others():
    """By the class that AOTAutograd gives it; eager nodes and numbers are none."""
    torch._dynamo.reset()
    x = torch.ones(2, requires_grad=True)
    found = torch.compile(lambda x: x.sin(), backend="aot_eager")(x)
    assert node_of_graph((1, found)) is found.grad_fn
    assert node_of_graph(x.sin()) is None
    torch._dynamo.reset()


@torch.library.custom_op("schedsim_tests::slope_of_square", mutates_args=())
def slope_of_square(x: torch.Tensor) -> torch.Tensor:
    """Twice `x`, by autograd within the op."""
    with autograd_within_an_op():
        y = x.detach().requires_grad_()
        return torch.autograd.grad((y * y).sum(), y)[0].clone()


def test_autograd_works_within_an_op():
    """Where it is off by default."""
    assert slope_of_square(torch.tensor([1.0, 3.0])).tolist() == [2.0, 6.0]


def test_what_a_node_has_saved():
    x = torch.randn(3, requires_grad=True)
    made = x.tanh()
    assert [t.data_ptr() for t in saved_by(made.grad_fn)] == [made.data_ptr()]
    made.sum().backward()
    assert list(saved_by(made.grad_fn)) == []


def test_hooks_for_saved_tensors_are_seen_while_they_hold():
    assert not has_saving_hooks()
    with torch.autograd.graph.save_on_cpu():
        assert has_saving_hooks()
    assert not has_saving_hooks()


def test_the_whole_gradient_of_a_parameter_is_seen_from_the_node_that_gives_a_part_of_it():
    """Not that of one with a hook, nor of one that another node gives gradients."""
    one, two, three = (torch.ones(2, requires_grad=True) for _ in range(3))
    two.register_hook(lambda gradient: gradient * 2)
    seen = []

    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            return a + b

        @staticmethod
        def backward(ctx, given):
            handles.extend(when_whole({id(one), id(two), id(three)}, seen.append))
            return given, given

    handles = []
    (Sum.apply(one, two) + 3 * one + three).sum().backward()
    assert [it.tolist() for it in seen] == [[4, 4]]
    for handle in handles:
        handle.remove()
    (one * 2).sum().backward()
    assert len(seen) == 1
    assert when_whole({id(one)}, seen.append) == []


def test_bytes_of_what_a_node_has_made():
    """Also behind its backward; nothing of views, and of the gradients of leaves."""
    x = torch.ones(4, 8, requires_grad=True)
    made = (x * 2).view(8, 4).t()
    product = made.grad_fn.next_functions[0][0].next_functions[0][0]
    assert [made_bytes(it) for it in (made.grad_fn, product)] == [0, x.nbytes]
    made.sum().backward()
    assert made_bytes(product) == x.nbytes
    assert made_bytes(product.next_functions[0][0]) == 0

"""Canaries of fake and traced tensors, and of sizes that a trace leaves open."""

from __future__ import annotations

import torch
from schedsim.validation.torch_private.fake_tensors import (
    asked_by,
    fake_mode,
    is_fake,
    is_symbolic,
    is_traced,
    known_of,
    size_text,
    without_memory,
)


def test_tensors_without_memory_are_told():
    """Numbers stay what they are."""
    fake, number = without_memory([torch.zeros(3), 7])
    assert (is_fake(fake), is_traced(fake), number) == (True, True, 7)
    assert not is_fake(torch.zeros(3))
    with fake_mode():
        assert is_fake(torch.zeros(2))


def test_open_sizes_say_what_is_known_of_them():
    """The size that was traced, a formula, and the largest one that the caller named."""
    seen = []

    def backend(graph_module, _inputs):
        values = [node.meta.get("example_value") for node in graph_module.graph.nodes]
        sizes = [value for value in values if isinstance(value, torch.SymInt)]
        lengths = [value.shape[0] for value in values if isinstance(value, torch.Tensor)]
        longest = max(lengths, key=lambda size: int(size.node.hint))
        seen.append((known_of(sizes[0]), size_text(longest)))
        assert is_symbolic(sizes[0])
        return graph_module.forward

    torch._dynamo.reset()
    x = torch.rand(5, 2)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=64)
    torch.compile(lambda x: torch.cat([x, x]) * 2, backend=backend)(x)
    known, text = seen[0]
    assert (known.traced, known.told, known.most) == (5, 64, 64)
    assert eval(text, {name: 5 for name in text.replace("*", " ").split() if name[0] == "s"}) == 10
    assert not is_symbolic(5)
    torch._dynamo.reset()


def test_what_python_asks_of_a_traced_tensor_can_be_answered():
    """Here by ``tolist``, which asks the tensor below by itself."""
    from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode

    asked = []

    def ask(method, tensor):
        asked.append(method.__name__)
        return 3

    with FunctionalTensorMode():
        traced = FunctionalTensor.to_functional(torch.tensor(1))
        with asked_by(ask):
            assert traced.tolist() == 3
    assert asked == ["tolist"]

"""Canaries of Dynamo's graphs: what they are of, unpacked tensors, numbers and inputs."""

from __future__ import annotations

import pytest
import torch
from schedsim.validation.torch_private.dynamo_graphs import (
    as_function,
    checkpointed_writes,
    ends_at_break,
    input_names,
    numbers_in_tensors,
    replaced_inputs,
    uncompiled,
    unpack_at_once,
    with_numbers,
)
from schedsim.validation.torch_private.tested_versions import minor_version
from torch import nn


def test_what_compile_returns_is_opened():
    """The model inside, and any other as it is."""
    net = nn.Linear(2, 2)
    assert uncompiled(torch.compile(net)) is net
    assert uncompiled(net) is net


def test_what_python_unpacks_is_one_op_and_what_it_indexes_is_not():
    """Eager mode unbinds what is unpacked or iterated over; the gradient is then one stack."""
    found = []

    def backend(graph_module, _inputs):
        before = len(graph_module.graph.nodes)
        num = unpack_at_once(graph_module)
        found.append((num, len(graph_module.graph.nodes) - before))
        return graph_module.forward

    class Unpacking(nn.Module):
        def forward(self, x):
            q, k, v = x
            total = sum(row * i for i, row in enumerate(x))
            a, b, c = x[0], x[1], x[2]
            return q * k + v - total + a * b / c, x[0]

    torch._dynamo.reset()
    model, x = Unpacking(), torch.rand(3, 4) + 1
    one, two = x.clone().requires_grad_(), x.clone().requires_grad_()
    outputs, expected = torch.compile(model, backend=backend)(one), model(two)
    # The unpacking and the loop; the indices, too, where torch does not tell places on a line.
    assert found == [(2, 2) if minor_version(torch.__version__) >= (2, 13) else (3, 3)]
    assert all(map(torch.equal, outputs, expected))
    outputs[0].sum().backward()
    expected[0].sum().backward()
    assert torch.equal(one.grad, two.grad)
    torch._dynamo.reset()


class Scaled(nn.Module):
    """A number of the model, where sizes are open."""

    def __init__(self):
        super().__init__()
        self.scale, self.fc = 0.5, nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x) * self.scale


def test_numbers_are_found_among_the_inputs_and_can_be_put_in():
    """Dynamo hands it over as a tensor; inputs are told by name."""
    seen = []

    def backend(graph_module, examples):
        numbers = numbers_in_tensors(graph_module)
        names = input_names(graph_module)
        known = {position: float(examples[position]) for position in numbers}
        fixed = with_numbers(graph_module, known)
        assert not any(node.target == "item" for node in fixed.graph.nodes)
        seen.append([(names[position], number) for position, number in known.items()])
        assert replaced_inputs(graph_module) == []
        assert any("weight" in name for name in names)
        return fixed.forward

    torch._dynamo.reset()
    model = Scaled()
    run = torch.compile(model, backend=backend, dynamic=True)
    x = torch.rand(3, 4)
    assert torch.equal(run(x), model.fc(x) * 0.5)
    assert seen == [[("L['self'].scale", 0.5)]]
    torch._dynamo.reset()


def test_an_input_that_gets_other_data_is_named():
    """``tensor.data = other`` within a graph."""
    seen = []

    def backend(graph_module, _inputs):
        seen.append(replaced_inputs(graph_module))
        return graph_module.forward

    def give(x, y):
        x.data = y
        return x + 1

    torch._dynamo.reset()
    x, y = torch.zeros(2), torch.ones(2)
    assert torch.compile(give, backend=backend)(x, y).tolist() == [2.0, 2.0]
    assert seen == [["L['x']"]]
    torch._dynamo.reset()


def test_what_is_written_under_a_checkpoint_is_found():
    """Batch statistics, and what an op writes in place; a dropout writes nothing."""
    seen = []

    def backend(graph_module, _inputs):
        seen.append(checkpointed_writes(graph_module))
        return graph_module.forward

    layers = {
        "norm": torch.nn.BatchNorm1d(3, track_running_stats=True),
        "plain": torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5)),
    }
    for layer in layers.values():
        torch._dynamo.reset()

        def step(x, layer=layer):
            return torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)

        torch.compile(step, backend=backend)(torch.randn(4, 3))
    torch._dynamo.reset()
    assert [len(found) > 0 for found in seen] == [True, False]
    assert any("running_mean" in name for name in seen[0])


def test_a_graph_as_a_function_prints_nothing_where_it_raises(capfd):
    """A call of the module prints the line of its code."""
    seen = []

    def backend(graph_module, _inputs):
        seen.append(as_function(graph_module))
        return graph_module.forward

    torch._dynamo.reset()
    torch.compile(torch.linalg.cholesky, backend=backend)(torch.eye(2))
    torch._dynamo.reset()
    assert torch.equal(seen[0](torch.eye(2))[0], torch.eye(2))
    capfd.readouterr()
    with pytest.raises(RuntimeError, match="not positive-definite"):
        seen[0](-torch.eye(2))
    assert capfd.readouterr() == ("", "")


def test_a_graph_knows_whether_it_ends_at_a_break():
    ends = []

    def backend(graph_module, inputs):
        ends.append(ends_at_break(graph_module))
        return graph_module.forward

    def broken(x):
        x = x.sin()
        torch._dynamo.graph_break()
        return x.cos()

    torch._dynamo.reset()
    torch.compile(broken, backend=backend)(torch.ones(3))
    assert ends == [True, False]

"""Canaries: one test for each thing that PyTorch does not document and that we rely on.

When a new torch breaks capture, these say by name what has moved.
"""

from __future__ import annotations

import pytest
import torch
from schedsim.validation.torch_private import joint_graphs as private
from schedsim.validation.torch_private.tested_versions import minor_version
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)

    def forward(self, x):
        return self.norm(self.linear(x)).sum()


@pytest.fixture
def step():
    mode = private.fake_mode()
    with mode:
        return Net(), (torch.zeros(4, 3),), mode


def roles_in(graph_module):
    nodes = [n for n in graph_module.graph.nodes if n.op == "placeholder"]
    return {private.placeholder_role(node)[:2] for node in nodes}


def roles_out(graph_module):
    return {role for node, role in private.output_roles(graph_module.graph) if node is not None}


EXPECTED_IN = {
    ("parameter", "linear.weight"),
    ("parameter", "norm.bias"),
    ("buffer", "norm.running_mean"),
    ("input", 0),
    ("tangent", 0),
}
EXPECTED_OUT = {
    private.Role("output", 0),
    private.Role("mutation", "norm.running_mean", "buffer"),
    private.Role("gradient", "linear.weight", "parameter"),
}


def test_joint_export_and_descriptors(step):
    """Inputs and outputs of the joint graph say what they are."""
    graph_module = private.export_joint(*step)
    assert roles_in(graph_module) >= EXPECTED_IN
    assert roles_out(graph_module) >= EXPECTED_OUT


def test_dynamo_graph_keeps_names(step):
    """Dynamo's graph module has the model's parameter names, and says which module a node is of."""
    model, inputs, mode = step
    graph_module = private.export_joint(private.dynamo_graph(model, inputs, mode), inputs, mode)
    assert roles_in(graph_module) >= EXPECTED_IN
    assert roles_out(graph_module) >= EXPECTED_OUT
    paths = {private.module_path(n) for n in graph_module.graph.nodes if n.op == "call_function"}
    assert any(path and path.endswith("linear") for path in paths)


def test_tags_and_numbers_of_nodes(step):
    """Backward nodes are tagged, and carry the sequence number of their forward op."""
    nodes = [n for n in private.export_joint(*step).graph.nodes if n.op == "call_function"]
    backward = [node for node in nodes if private.is_backward(node)]
    forward = [node for node in nodes if not private.is_backward(node)]
    assert {n.target for n in backward} >= {torch.ops.aten.native_batch_norm_backward.default}
    assert {n.target for n in forward} >= {torch.ops.aten.addmm.default}
    number = {n.target: private.node_sequence_number(n) for n in nodes}
    norm = number[torch.ops.aten._native_batch_norm_legit_functional.default]
    assert norm == number[torch.ops.aten.native_batch_norm_backward.default] > 0


def test_sequence_numbers_count_autograd_nodes():
    before = private.sequence_number()
    torch.ones(2, requires_grad=True).sum()
    assert private.sequence_number() == before + 1


def test_inductor_compiles_functional_ops_and_empties_its_arguments():
    mode = private.fake_mode()
    with mode:
        example = torch.zeros(3, 3)
    run = private.inductor_compiled(lambda x: (x @ x, x @ x), [example], mode)
    x = torch.randn(3, 3)
    arguments = [x]
    first, second = run(arguments)
    torch.testing.assert_close(first, x @ x)
    assert first.data_ptr() != second.data_ptr()  # equal ops are not merged
    assert not arguments


def test_the_backward_node_that_runs_is_known():
    """By the number that its forward op was given."""
    seen = []

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append((func, private.current_node_number(), private.sequence_number() - 1))
            return func(*args, **(kwargs or {}))

    with Mode():
        torch.zeros(3, requires_grad=True).exp().sum().backward()
    forward = [number for func, _, number in seen if func is torch.ops.aten.exp.default]
    backward = [node for func, node, _ in seen if func is torch.ops.aten.mul.Tensor]
    assert forward == backward


def test_inductor_cuts_a_joint_graph_in_two(step):
    """The halves keep the names of nodes, and the backward one takes what the forward one keeps."""
    halves = private.inductor_halves(*step)
    names = {node.name for node in halves.joint.graph.nodes}
    output = next(iter(halves.forward.graph.find_nodes(op="output")))
    kept = {node.name for node in output.args[0][halves.num_outputs :]}
    taken = {node.name for node in halves.backward.graph.find_nodes(op="placeholder")}
    assert kept <= names
    assert kept <= taken
    assert halves.num_outputs == 4  # the loss, and what the norm updates


def test_an_autograd_function_is_found_by_its_context():
    """While its forward runs."""
    seen = []

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            seen.append(private.function_of(ctx))
            return x * 2

    Twice.apply(torch.ones(1))
    assert seen == [Twice]
    assert private.function_of(None) is None


def test_what_compile_returns_is_opened():
    """The model inside, and any other as it is."""
    net = Net()
    assert private.uncompiled(torch.compile(net)) is net
    assert private.uncompiled(net) is net


def test_what_python_unpacks_is_one_op_and_what_it_indexes_is_not():
    """Eager mode unbinds what is unpacked or iterated over; the gradient is then one stack."""
    found = []

    def backend(graph_module, _inputs):
        before = len(graph_module.graph.nodes)
        num = private.unpack_at_once(graph_module)
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

"""Canaries of exported graphs: inputs and outputs say what they are, halves keep their names."""

from __future__ import annotations

import pytest
import torch
from normed_line import NormedLine
from schedsim.validation.torch_private.dynamo_graphs import dynamo_graph
from schedsim.validation.torch_private.fake_tensors import fake_mode
from schedsim.validation.torch_private.graph_roles import (
    Role,
    module_path,
    output_roles,
    placeholder_role,
)
from schedsim.validation.torch_private.joint_graphs import (
    export_joint,
    inductor_compiled,
    inductor_halves,
)


@pytest.fixture
def step():
    mode = fake_mode()
    with mode:
        return NormedLine(), (torch.zeros(4, 3),), mode


def roles_in(graph_module):
    nodes = [n for n in graph_module.graph.nodes if n.op == "placeholder"]
    return {placeholder_role(node)[:2] for node in nodes}


def roles_out(graph_module):
    return {role for node, role in output_roles(graph_module.graph) if node is not None}


EXPECTED_IN = {
    ("parameter", "linear.weight"),
    ("parameter", "norm.bias"),
    ("buffer", "norm.running_mean"),
    ("input", 0),
    ("tangent", 0),
}
EXPECTED_OUT = {
    Role("output", 0),
    Role("mutation", "norm.running_mean", "buffer"),
    Role("gradient", "linear.weight", "parameter"),
}


def test_joint_export_and_descriptors(step):
    """Inputs and outputs of the joint graph say what they are."""
    graph_module = export_joint(*step)
    assert roles_in(graph_module) >= EXPECTED_IN
    assert roles_out(graph_module) >= EXPECTED_OUT


def test_dynamo_graph_keeps_names(step):
    """Dynamo's graph module has the model's parameter names, and says which module a node is of."""
    model, inputs, mode = step
    graph_module = export_joint(dynamo_graph(model, inputs, mode), inputs, mode)
    assert roles_in(graph_module) >= EXPECTED_IN
    assert roles_out(graph_module) >= EXPECTED_OUT
    paths = {module_path(n) for n in graph_module.graph.nodes if n.op == "call_function"}
    assert any(path and path.endswith("linear") for path in paths)


def test_inductor_compiles_functional_ops_and_empties_its_arguments():
    mode = fake_mode()
    with mode:
        example = torch.zeros(3, 3)
    run = inductor_compiled(lambda x: (x @ x, x @ x), [example], mode)
    x = torch.randn(3, 3)
    arguments = [x]
    first, second = run(arguments)
    torch.testing.assert_close(first, x @ x)
    assert first.data_ptr() != second.data_ptr()  # equal ops are not merged
    assert not arguments


def test_inductor_cuts_a_joint_graph_in_two(step):
    """The halves keep the names of nodes, and the backward one takes what the forward one keeps."""
    halves = inductor_halves(*step)
    names = {node.name for node in halves.joint.graph.nodes}
    output = next(iter(halves.forward.graph.find_nodes(op="output")))
    kept = {node.name for node in output.args[0][halves.num_outputs :]}
    taken = {node.name for node in halves.backward.graph.find_nodes(op="placeholder")}
    assert kept <= names
    assert kept <= taken
    assert halves.num_outputs == 4  # the loss, and what the norm updates

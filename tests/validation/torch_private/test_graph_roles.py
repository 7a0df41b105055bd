"""Canaries of what nodes carry: tags, numbers, and sums of gradients."""

from __future__ import annotations

import torch
from normed_line import NormedLine
from schedsim.validation.torch_private.fake_tensors import fake_mode
from schedsim.validation.torch_private.graph_roles import (
    is_backward,
    is_gradient_sum,
    node_sequence_number,
)
from schedsim.validation.torch_private.joint_graphs import export_joint
from torch import nn


def test_tags_and_numbers_of_nodes():
    """Backward nodes are tagged, and carry the sequence number of their forward op."""
    mode = fake_mode()
    with mode:
        model, inputs = NormedLine(), (torch.zeros(4, 3),)
    nodes = [n for n in export_joint(model, inputs, mode).graph.nodes if n.op == "call_function"]
    backward = [node for node in nodes if is_backward(node)]
    forward = [node for node in nodes if not is_backward(node)]
    assert {n.target for n in backward} >= {torch.ops.aten.native_batch_norm_backward.default}
    assert {n.target for n in forward} >= {torch.ops.aten.addmm.default}
    number = {n.target: node_sequence_number(n) for n in nodes}
    norm = number[torch.ops.aten._native_batch_norm_legit_functional.default]
    assert norm == number[torch.ops.aten.native_batch_norm_backward.default] > 0


class Twice(nn.Module):
    """A tensor that two ops read."""

    def forward(self, x):
        y = x.exp()
        return (y.sin() * y.cos()).sum()


def test_the_sum_of_two_gradients_is_known():
    """The engine makes one for the tensor that two ops read, and none of a number."""
    mode = fake_mode()
    with mode:
        x = torch.zeros(3, requires_grad=True)
    nodes = export_joint(Twice(), (x,), mode).graph.nodes
    sums = [node for node in nodes if is_gradient_sum(node)]
    assert [node.target for node in sums] == [torch.ops.aten.add.Tensor]
    assert is_backward(sums[0])

"""Canaries of the contexts of a trace: draws that nothing reads stay, loggers are as before."""

from __future__ import annotations

import logging

import torch
from schedsim.validation.torch_private.fake_tensors import fake_mode
from schedsim.validation.torch_private.joint_graphs import export_joint
from schedsim.validation.torch_private.quiet_traces import quiet_loggers
from torch import nn


class Drawing(nn.Module):
    """A draw whose numbers nothing reads."""

    def forward(self, x):
        torch.rand(3, device=x.device)
        return x.sum()


def test_draws_that_nothing_reads_stay_in_the_graph():
    """They leave the generator elsewhere."""
    mode = fake_mode()
    with mode:
        x = torch.zeros(3, requires_grad=True)
    targets = [node.target for node in export_joint(Drawing(), (x,), mode).graph.nodes]
    assert torch.ops.aten.rand.default in targets


def test_loggers_are_quiet_meanwhile_and_then_as_before():
    """Also behind an error."""
    logger = logging.getLogger("torch._dynamo")
    level = logger.level
    with quiet_loggers():
        assert not logger.isEnabledFor(logging.ERROR)
    assert logger.level == level

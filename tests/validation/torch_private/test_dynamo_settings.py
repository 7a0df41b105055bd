"""Dynamo's settings for a piece of work, and what it says of graphs that it broke."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.torch_private.dynamo_settings import (  # noqa: E402
    dynamo_settings,
    graph_breaks,
    last_graph_break,
)


def test_settings_are_taken_back():
    """Also those of a name that this torch does not have are no fault."""
    before = torch._dynamo.config.allow_rnn
    with dynamo_settings({"allow_rnn": not before, "no_such_setting": 1}):
        assert torch._dynamo.config.allow_rnn is not before
    assert torch._dynamo.config.allow_rnn is before


def test_the_newest_broken_graph_is_named():

    def broken(x):
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    for _ in range(2):  # the same reason again, too
        torch._dynamo.reset()
        before = graph_breaks()
        torch.compile(broken, backend="eager")(torch.ones(2))
        assert "graph_break" in last_graph_break(before)
        assert last_graph_break(graph_breaks()) == ""
    torch._dynamo.reset()


def test_dynamo_can_be_told_to_guard_hooks():
    """A hook registered later makes it trace again."""
    net, graphs = torch.nn.Linear(1, 1), []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    step = torch.compile(lambda x: net(x), backend=backend)
    x = torch.ones(1)
    with dynamo_settings({"skip_nnmodule_hook_guards": False}):
        before = step(x)
        net.register_forward_hook(lambda module, given, out: out + 1)
        assert torch.equal(step(x), before + 1)
    assert len(graphs) == 2
    torch._dynamo.reset()

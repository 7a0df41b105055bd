"""Frames that Dynamo compiles are told of, by backend."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.torch_private.frame_callbacks import (  # noqa: E402
    when_call_ends,
    when_compiling,
)
from torch import nn  # noqa: E402


def plain(graph_module, inputs):
    """A backend."""
    return graph_module.forward


def other(graph_module, inputs):
    """Another one."""
    return graph_module.forward


def test_a_frame_is_told_of_for_its_backend_alone_and_after_a_reset():
    said: list[str] = []
    for _ in range(2):  # once, however often it is asked for
        when_compiling(plain, lambda _: said.append("begins"), lambda _: said.append("ends"))
    x = torch.randn(2, 4)
    torch.compile(nn.Linear(4, 4), backend=other)(x)
    assert said == []
    for _ in range(2):
        torch._dynamo.reset()
        torch.compile(nn.Linear(4, 4), backend=plain)(x)
    assert said == ["begins", "ends"] * 2
    torch._dynamo.reset()


def test_the_end_of_a_call_is_told_of():
    said: list[str] = []

    def inner(x):
        torch._dynamo.graph_break()
        said.append("within")
        assert when_call_ends(lambda: said.append("over"))
        return x + 1

    torch.compile(inner, backend=plain)(torch.randn(2))
    assert said == ["within", "over"]
    assert not when_call_ends(lambda: said.append("never"))
    torch._dynamo.reset()

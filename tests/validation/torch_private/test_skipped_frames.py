"""What Dynamo gives up, and why, is read where the compilation ends."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.torch_private.frame_callbacks import when_compiling  # noqa: E402
from schedsim.validation.torch_private.skipped_frames import skipped_code  # noqa: E402


def plain(graph_module, inputs):
    """A backend."""
    return graph_module.forward


def broken(x):
    """A function that Dynamo gives up: the graph breaks within a loop."""
    for _ in range(2):
        torch._dynamo.graph_break()
        x = x.sin()
    return x


def whole(x):
    """One that it traces."""
    return x.sin()


def test_the_function_and_the_reason_in_a_line():
    torch._dynamo.reset()
    said = []
    when_compiling(plain, lambda _: None, lambda frame: said.append(skipped_code(frame)))
    torch.compile(whole, backend=plain)(torch.randn(2))
    assert said == [None]
    torch.compile(broken, backend=plain)(torch.randn(2))
    [(code, reason)] = [one for one in said if one is not None]
    assert code is broken.__code__
    assert "graph_break" in reason
    assert "\n" not in reason
    torch._dynamo.reset()

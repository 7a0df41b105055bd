"""What Dynamo gives up, and why, is read where the compilation ends."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.torch_private.frame_callbacks import when_compiling  # noqa: E402
from schedsim.validation.torch_private.skipped_frames import (  # noqa: E402
    breaks_so_far,
    skipped_code,
)


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


def test_a_graph_that_breaks_is_told_where_it_is_asked_for():
    """No error: the code behind the break is compiled by itself, or is torch's own, and is not."""
    torch._dynamo.reset()
    before, said = [], []
    when_compiling(
        broken_once,
        lambda _: before.append(breaks_so_far()),
        lambda frame: said.append((skipped_code(frame), skipped_code(frame, before[-1]))),
    )

    def breaks(x):
        x = x.sin()
        torch._dynamo.graph_break()
        return x.cos()

    torch.compile(breaks, backend=broken_once)(torch.randn(2))
    [(without, found), *behind] = said
    assert without is None
    assert found[0] is breaks.__code__
    assert "graph_break" in found[1]
    assert "\n" not in found[1]
    assert behind == [(None, None)]
    torch._dynamo.reset()


def broken_once(graph_module, inputs):
    """Another backend."""
    return graph_module.forward

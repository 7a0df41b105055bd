"""Graphs that no backward follows are compiled whole."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.compiled import without_backward  # noqa: E402
from schedsim.validation.compiled.group import CompileWarning  # noqa: E402


def test_what_needs_no_gradient():
    trained, given = torch.nn.Parameter(torch.ones(2)), torch.ones(2)
    assert not without_backward.needs_no_gradient([given, trained, 3])
    assert without_backward.needs_no_gradient([given, 3])
    with torch.no_grad():
        assert without_backward.needs_no_gradient([trained])


def test_what_inductor_does_not_compile_is_told(monkeypatch):
    def fails(*_):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(without_backward.inductor, "compile_graph", fails)
    graph_module = torch.fx.symbolic_trace(torch.nn.ReLU())
    with pytest.warns(CompileWarning, match="no backward follows runs uncompiled"):
        assert without_backward.compiled_without_backward(graph_module, [torch.ones(2)]) is None

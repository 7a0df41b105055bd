"""The multilayer perceptron: its size by the formula, dropout only where asked."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.models.mlp import build_mlp  # noqa: E402


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_size_and_layers(dropout):
    """``layers * (hidden**2 + hidden)`` parameters, a stage a layer."""
    model, (x,), loss = build_mlp(layers=3, hidden=8, batch=5, dropout=dropout)
    assert sum(p.numel() for p in model.parameters()) == 3 * (8**2 + 8)
    assert (len(model), x.shape) == (3, (5, 8))
    assert any(isinstance(m, torch.nn.Dropout) for m in model.modules()) == bool(dropout)
    assert loss(model(x)).ndim == 0

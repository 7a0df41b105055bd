"""The LSTM in stages of a few steps: its size, and the same numbers as PyTorch's own."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.models.lstm import build_lstm  # noqa: E402


def test_the_stages_are_the_lstm_of_torch():
    """With its weights, in steps of three, the last stage shorter."""
    torch.manual_seed(0)
    options = {"seq": 7, "hidden": 5, "features": 3, "classes": 4, "batch": 2}
    model, (x,), loss = build_lstm(**options, steps=3, dropout=0.0)
    assert sum(p.numel() for p in model.parameters()) == 4 * 5 * (5 + 3 + 2) + 4 * (5 + 1)
    cell = next(m for m in model.modules() if isinstance(m, torch.nn.LSTMCell))
    head = [m for m in model.modules() if isinstance(m, torch.nn.Linear)][-1]
    whole = torch.nn.LSTM(3, 5, batch_first=True)
    for name, value in cell.named_parameters():
        getattr(whole, f"{name}_l0").data = value.data
    torch.testing.assert_close(model(x), head(whole(x)[0][:, -1]))
    assert loss(model(x)).ndim == 0

"""GPT-2: its size by the formula, and no position sees what comes after it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.models.gpt2 import build_gpt2  # noqa: E402


def test_size_and_causality():
    """12 h^2 + 13 h a layer, the embeddings, the last norm, and a head without bias."""
    torch.manual_seed(0)
    h, vocab, seq, layers = 8, 11, 6, 2
    options = {"layers": layers, "hidden": h, "heads": 2, "vocab": vocab, "batch": 3, "seq": seq}
    model, (ids,), loss = build_gpt2(**options, positions=seq)
    unique = {id(p): p.numel() for p in model.parameters()}
    tied = model.get_parameter("0.tokens.weight") is model[-1].logits.weight
    head = 0 if tied else vocab * h
    expected = vocab * h + seq * h + layers * (12 * h * h + 13 * h) + 2 * h + head
    assert sum(unique.values()) == expected
    model.eval()
    changed = ids.clone()
    changed[:, -1] = (ids[:, -1] + 1) % vocab
    torch.testing.assert_close(model(ids)[:, :-1], model(changed)[:, :-1])
    assert not torch.allclose(model(ids)[:, -1], model(changed)[:, -1])
    assert loss(model(ids)).ndim == 0

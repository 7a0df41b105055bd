"""Llama: its size by the formula, causality, rotary positions, and grouped keys."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.models.llama import LlamaBlock, _angles, _rotated, build_llama  # noqa: E402

SMALL = {"layers": 2, "hidden": 8, "heads": 4, "kv_heads": 2, "ffn": 12, "vocab": 11}


def test_size_and_causality():
    """Attention 2 h^2 + 2 h k, feed-forward 3 h f, norms 2 h a layer; embedding, norm and head."""
    torch.manual_seed(0)
    h, k, f, vocab = 8, 4, 12, 11
    model, (ids,), loss = build_llama(**SMALL, seq=6, batch=3)
    layer = 2 * h * h + 2 * h * k + 3 * h * f + 2 * h
    assert sum(p.numel() for p in model.parameters()) == 2 * layer + 2 * vocab * h + h
    tied, _, _ = build_llama(**SMALL, tied=True, seq=6)
    assert sum(p.numel() for p in tied.parameters()) == 2 * layer + vocab * h + h
    changed = ids.clone()
    changed[:, -1] = (ids[:, -1] + 1) % vocab
    torch.testing.assert_close(model(ids)[:, :-1], model(changed)[:, :-1])
    assert not torch.allclose(model(ids)[:, -1], model(changed)[:, -1])
    assert loss(model(ids)).ndim == 0


def test_the_default_is_the_7b_of_llama_2():
    """The default has the size of the paper's model."""
    with torch.device("meta"):
        model = build_llama(seq=2).model
    assert sum(p.numel() for p in model.parameters()) == 6_738_415_616


def test_positions_count_by_their_distance_alone():
    """Rotation keeps lengths; products of turned vectors depend on the difference of places."""
    torch.manual_seed(0)
    x = torch.randn(2, 8).double()
    turn = _angles(10, 8, 10000.0, x)
    at = [_rotated(x[:1].expand(10, -1), turn), _rotated(x[1:].expand(10, -1), turn)]
    torch.testing.assert_close(at[0].norm(dim=1), x[0].norm().expand(10))
    products = at[0] @ at[1].T
    for distance in range(-3, 4):
        row = products.diagonal(distance)
        torch.testing.assert_close(row, row[:1].expand_as(row))
    assert not torch.allclose(products[0, 1], products[0, 2])


def test_grouped_keys_are_those_of_their_group():
    """Two heads of keys for four of queries: as with each head of keys written out twice."""
    torch.manual_seed(0)
    grouped, whole = LlamaBlock(8, 4, 2, 12, 1e4), LlamaBlock(8, 4, 4, 12, 1e4)
    state = grouped.state_dict()
    for name in ("key.weight", "value.weight"):
        heads = state[name].view(2, 2, 8)
        state[name] = heads.repeat_interleave(2, 0).reshape(8, 8)
    whole.load_state_dict(state)
    x = torch.randn(2, 5, 8)
    torch.testing.assert_close(grouped(x), whole(x))

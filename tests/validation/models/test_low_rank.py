"""Adapters of low rank beside frozen products."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.models import build_model  # noqa: E402
from schedsim.validation.models.low_rank import LowRankLinear, adapt  # noqa: E402
from torch import nn  # noqa: E402

SMALL = {"layers": 2, "hidden": 8, "heads": 2, "ffn": 12, "vocab": 11, "seq": 4}


def test_it_is_the_product_with_a_weight_of_low_rank_added():
    """W + B A, of which B and A are trained."""
    torch.manual_seed(0)
    whole = nn.Linear(6, 5)
    made = LowRankLinear(whole, 2)
    x = torch.randn(3, 6)
    added = nn.functional.linear(x, made.up.weight @ made.down.weight)
    torch.testing.assert_close(made(x), whole(x) + added)
    made(x).sum().backward()
    assert whole.weight.grad is None
    assert made.down.weight.grad is not None


def test_a_llama_trains_adapters_of_query_and_value_alone():
    """2 r (h + h) numbers a layer, and nothing else has a gradient."""
    model, inputs, loss = build_model("llama2-7b", **SMALL, lora=3)
    loss(model(*inputs)).backward()
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    assert sum(p.numel() for p in trained.values()) == 2 * 2 * 3 * (8 + 8)
    assert all(".query." in name or ".value." in name for name in trained)
    assert {n for n, p in model.named_parameters() if p.grad is not None} == set(trained)


def test_names_that_no_product_has_are_refused():
    with pytest.raises(ValueError, match="called one of gate"):
        adapt(nn.Sequential(nn.Linear(2, 2)), ("gate",), 1)

"""Mixtral: experts by hand, equal shares, gradients, and what is refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.models import build_model  # noqa: E402
from schedsim.validation.models.mixtral import Experts  # noqa: E402
from schedsim.validation.ways.chunk import _token_wise  # noqa: E402
from torch.nn import functional  # noqa: E402

from schedsim.errors import SchedsimError  # noqa: E402

SMALL = {"layers": 2, "hidden": 8, "heads": 2, "kv_heads": 1, "ffn": 12, "vocab": 11}


def test_balanced_choices_are_computed_by_the_chosen_experts():
    """Token by token, where the router sends each expert its equal share."""
    torch.manual_seed(0)
    made = Experts(8, 6, 4, 2).double()
    for parameter in (made.gate, made.up, made.down):
        torch.nn.init.normal_(parameter)
    with torch.no_grad():  # features 0 to 3 are the scores of the experts
        made.router.weight.copy_(torch.eye(4, 8))
    x = torch.randn(1, 4, 8).double()
    pairs = [(0, 1), (1, 2), (2, 3), (3, 0)]
    for token, (first, second) in enumerate(pairs):
        x[0, token, :4] = -5.0
        x[0, token, first], x[0, token, second] = 2.0, 1.0
    found = made(x)
    for token, pair in enumerate(pairs):
        row = x[0, token]
        weights = torch.tensor([2.0, 1.0]).double().softmax(0)
        want = sum(
            weight * ((functional.silu(row @ made.gate[e]) * (row @ made.up[e])) @ made.down[e])
            for weight, e in zip(weights, pair, strict=True)
        )
        torch.testing.assert_close(found[0, token], want, rtol=1e-5, atol=1e-6)


def test_every_parameter_has_a_gradient_and_sizes_do_not_depend_on_values():
    """Each expert takes its share, whatever the router says."""
    model, inputs, loss = build_model("mixtral-8x7b", **SMALL, experts=4, seq=6, batch=2)
    with torch.no_grad():
        model[1].experts.router.weight.zero_()  # all choose the first two
    loss(model(*inputs)).backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []


def test_its_tokens_are_not_cut_into_chunks():
    """Shares of a part of them are not those of all: the layer is not one that chunks may run."""
    model, _, _ = build_model("mixtral-8x7b", **SMALL, experts=4, seq=6, batch=2)
    with pytest.raises(SchedsimError, match="no feed-forward layers"):
        _token_wise(model)


def test_tokens_that_cannot_be_shared_equally_are_refused():
    """With the two sizes."""
    with pytest.raises(SchedsimError, match="is not a multiple of experts, 4"):
        build_model("mixtral-8x7b", **SMALL, experts=4, seq=3, batch=1)

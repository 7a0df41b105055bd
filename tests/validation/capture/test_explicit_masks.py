"""Whether an explicit mask that masks nothing has other last bits is tried, and not guessed."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.capture import explicit_masks  # noqa: E402
from schedsim.validation.capture.explicit_masks import explicit_masks_round  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention as attention  # noqa: E402

HEADS = torch.empty(2, 4, 16, 8)


def answers(function, *inputs, dynamic=None):
    """What is said of each graph that Dynamo makes of `function`."""
    said: list[bool] = []

    def backend(graph_module, _inputs):
        said.append(explicit_masks_round(graph_module))
        return graph_module.forward

    torch._dynamo.reset()
    torch.compile(function, backend=backend, dynamic=dynamic)(*inputs)
    torch._dynamo.reset()
    return said


def inputs(num_groups=1):
    """Queries, keys, values, and a mask of tokens."""
    torch.manual_seed(0)
    tokens = torch.ones(2, 16, dtype=torch.int64)
    keys = [torch.randn(2, 4 // num_groups, 16, 8) for _ in range(2)]
    return torch.randn(2, 4, 16, 8), *keys, tokens


def padded(query, key, value, tokens):
    """Bidirectional attention."""
    mask = tokens.bool()[:, None, None, :].expand(-1, -1, query.shape[2], -1)
    return attention(query, key, value, attn_mask=mask)


def causal(query, key, value, tokens):
    """No query sees a later key."""
    places = torch.arange(query.shape[2])
    mask = (places[:, None] >= places) & tokens.bool()[:, None, None, :]
    return attention(query, key, value, mask, 0.0)


def grouped(query, key, value, tokens):
    """Keys and values that are repeated beside a mask, as transformers does."""

    def repeated(x):
        return x[:, :, None].expand(2, 2, 2, 16, 8).reshape(2, 4, 16, 8)

    return causal(query, repeated(key), repeated(value), tokens)


def windowed(query, key, value, tokens):
    """Grouped, and no query sees a key that is more than three places before it."""

    def repeated(x):
        return x[:, :, None].expand(2, 2, 2, 16, 8).reshape(2, 4, 16, 8)

    places = torch.arange(query.shape[2])
    ago = places[:, None] - places
    mask = (ago >= 0) & (ago < 4) & tokens.bool()[:, None, None, :]
    return attention(query, repeated(key), repeated(value), mask)


def packed(query, key, value, places):
    """Grouped, and no query sees another text: one begins where the place is no next one."""

    def repeated(x):
        return x[:, :, None].expand(2, 2, 2, 16, 8).reshape(2, 4, 16, 8)

    text = torch.nn.functional.pad(places.diff(dim=-1) != 1, (1, 0)).cumsum(-1)
    mask = (text[:, None, :, None] == text[:, None, None, :]).tril()
    return attention(query, repeated(key), repeated(value), mask)


def unmasked(query, key, value, tokens):
    return attention(query, key, value, is_causal=True) * tokens[:, None, :, None]


def biased(query, key, value, tokens):
    """The mask is made of activations, and no whole numbers tell what it masks."""
    return attention(query, key, value, attn_mask=query @ key.mT)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    ("function", "rounds"), [(padded, False), (causal, False), (unmasked, False)]
)
def test_kernels_that_give_the_same_bits_are_no_news(function, rounds, dynamic):
    assert answers(function, *inputs(), dynamic=dynamic) == [rounds]


def test_keys_that_are_repeated_beside_a_mask_round_otherwise():
    """Where the kernel shares them without one, their gradients are summed in another order."""
    assert answers(grouped, *inputs(num_groups=2)) == [True]


def test_a_window_is_there_in_the_plain_step_too():
    """As in Gemma 3, of which the line came although its steps were equal."""
    assert answers(windowed, *inputs(num_groups=2)) == [False]


def test_places_of_one_text_mask_nothing():
    """Ones would be a text each."""
    assert answers(packed, *inputs(num_groups=2)) == [True]


@pytest.mark.parametrize("function", [padded, causal, biased])
def test_another_kernel_is_told_of(function, monkeypatch):
    def other(query, key, value, attn_mask=None, **options):
        found = attention(query, key, value, attn_mask, **options)
        return found if attn_mask is None else found * (1 + 2**-20)

    monkeypatch.setattr(explicit_masks, "_run", other)
    assert answers(function, *inputs()) == [True]


def test_attention_within_a_graph_that_is_called_is_looked_at():
    def checkpointed(*given):
        return torch.utils.checkpoint.checkpoint(grouped, *given, use_reentrant=False)

    query, key, value, tokens = inputs(num_groups=2)
    assert answers(checkpointed, query.requires_grad_(), key, value, tokens) == [True]


def test_nothing_is_left_in_the_generator():
    torch._dynamo.reset()
    found = []

    def dropped(query, key, value, tokens):
        mask = tokens.bool()[:, None, None, :]
        return attention(query, key, value, attn_mask=mask, dropout_p=0.5)

    def backend(graph_module, _inputs):
        before = torch.get_rng_state()
        found.append(explicit_masks_round(graph_module))
        assert torch.equal(torch.get_rng_state(), before)
        return graph_module.forward

    torch.compile(dropped, backend=backend)(*inputs())
    assert found == [False]
    torch._dynamo.reset()

"""Queries, keys and values of a rank: positions, heads, and what attention reads."""

from dataclasses import replace

import pytest
from cluster_layers import layer

import schedsim
from schedsim.clusters import Degrees, Libraries, get_architecture, get_fabric
from schedsim.errors import SchedsimError

TOKENS = 4096
HEADS = get_architecture("qwen3-32b").attention
WHOLE = Libraries(whole_heads=True)


def layers_of(**settings):
    """Qwen3-32B over eight tensor-parallel ranks."""
    made, _ = layer("qwen3-32b", TOKENS, Degrees(tensor=8), seq=TOKENS, **settings)
    return made


def ops(made, name):
    """The ops of that name, forward and backward."""
    return [op for op in (*made.forward, *made.backward) if op.name == name]


def test_whole_heads_are_gathered_turned_and_cut():
    """Each rank turns all 64 heads of queries, and all 8 of keys for each of the 64."""
    made = layers_of(libraries=WHOLE)
    own = TOKENS * HEADS.head_width * 2
    assert made.sizes["q.normed.whole"] == HEADS.num_heads * own
    assert made.sizes["k.normed.whole"] == HEADS.num_kv_heads * own
    assert made.sizes["k.turned.whole"] == HEADS.num_heads * own
    # Attention reads this rank's eight heads of each.
    assert [made.sizes[one] for one in ("q.turned", "k.turned", "v.wide")] == [8 * own] * 3
    gathers = [op for op in made.forward if op.stream == "tensor" and "normed" in op.name]
    assert [op.name for op in gathers] == ["q.normed.whole", "k.normed.whole"]
    assert all(op.link_s > 0 for op in gathers)
    # No message goes back: gradients are those of the rank's own heads.
    assert not any("normed" in op.name for op in made.backward if op.stream == "tensor")
    assert made.sizes["d.q.normed#0"] == 8 * own
    assert made.sizes["d.k.normed#0"] == own


def test_whole_heads_move_what_was_counted():
    """Ops on elements and copies of PyTorch's own step with torchtitan's layer: 10 bytes a byte."""
    own = TOKENS * HEADS.head_width * 2
    made = layers_of(libraries=WHOLE)
    (turned,) = ops(made, "q.turned.whole")
    assert turned.moved_bytes == 10 * HEADS.num_heads * own
    (keys,) = ops(made, "k.turned.whole")
    assert keys.moved_bytes == (10 * 8 + 8 + 64) * own
    plain = layers_of()
    (alone,) = [op for op in plain.forward if op.name == "q.turned"]
    assert alone.moved_bytes == 10 * 8 * own


def test_a_single_head_of_keys_is_a_view():
    """Unless whole heads are cut: then there is a copy for every head of queries."""
    assert "v.wide" not in layers_of().sizes
    assert "v.wide" in layers_of(libraries=WHOLE).sizes


def test_positions_in_halves_are_turned_in_16_bits():
    """Complex numbers are in fp32."""
    halves, _ = layer("qwen3-32b", TOKENS)
    complex_ones, _ = layer("llama3-8b", TOKENS)
    assert halves.sizes["q.turned.0.copy"] == halves.sizes["q.normed"]
    assert complex_ones.sizes["q.turned.0.copy"] == 2 * complex_ones.sizes["q"]


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("llama3-8b", {"tensor": 8}),
        ("qwen3-32b", {}),
        ("qwen3-32b", {"tensor": 8, "compiled": True}),
    ],
)
def test_whole_heads_where_there_are_none(model, settings):
    """Heads without norms, one tensor-parallel rank, compiled layers."""
    with pytest.raises(SchedsimError, match="whole_heads changes nothing here"):
        schedsim.cluster(model, devices=8, seq=4096, libraries=WHOLE, **settings)


@pytest.mark.slow
def test_whole_heads_take_longer():
    """The step of pull request 1690 of torchtitan: 9.35 s; 7.2 s without them."""
    words = {"fsdp": 4, "tensor": 8, "batch": 16, "seq": 4096, "recompute": "full"}
    words |= {"device": "h100-96gb", "separate_head": True, "fused_optimizer": True}
    plain = schedsim.cluster("qwen3-32b", **words)
    whole = schedsim.cluster("qwen3-32b", libraries=WHOLE, **words)
    assert plain.step_s < 0.8 * 9.35
    assert 0.85 * 9.35 < whole.step_s < 9.35


@pytest.mark.parametrize(
    ("model", "way", "rates"),
    [
        ("qwen3-32b", "flex_attention", (0.90, 0.85)),
        ("deepseek-v2-lite", "flex_attention", (0.280, 0.239)),
        ("qwen3-32b", "efficient_attention", (0.5, 0.5)),
        ("deepseek-v2-lite", "efficient_attention", (0.121, 0.121)),
    ],
)
def test_other_attentions_are_slower(model, way, rates):
    """On heads wider than 128 much so."""
    plain, slow = (
        layer(model, TOKENS, seq=TOKENS, libraries=libraries)[0]
        for libraries in (Libraries(), Libraries(**{way: True}))
    )
    for name, rate in zip(("mixed", "mixed'"), rates, strict=True):
        (before,), (after,) = ops(plain, name), ops(slow, name)
        assert after.flops == pytest.approx(before.flops / rate)


def test_flex_attention_pads_narrow_heads():
    """Of 96 numbers to 128."""
    model = get_architecture("llama3.2-1b")
    model = replace(model, attention=replace(model.attention, head_width=96))
    plain, flex = (
        layer(model, TOKENS, seq=TOKENS, libraries=Libraries(flex_attention=one))[0]
        for one in (False, True)
    )
    for name, rate in (("mixed", 0.90), ("mixed'", 0.85)):
        (before,), (after,) = ops(plain, name), ops(flex, name)
        assert after.flops == pytest.approx(before.flops * 128 / 96 / rate)


@pytest.mark.parametrize(
    ("libraries", "flash", "says"),
    [
        (Libraries(flex_attention=True, efficient_attention=True), 2, "two kernels"),
        (Libraries(flex_attention=True), 1, "--flash does nothing"),
        (Libraries(efficient_attention=True), 3, "--flash does nothing"),
    ],
)
def test_one_attention_runs(libraries, flash, says):
    """Which of two, the message says."""
    with pytest.raises(SchedsimError, match=says):
        schedsim.cluster("llama3.2-1b", devices=8, seq=512, libraries=libraries, flash=flash)


def test_flex_attention_takes_on_wide_heads_what_was_measured():
    """What was tuned in the log of torchtitan's pull request 1437: 8 sequences of 4,096 tokens."""
    fabric = get_fabric("h100-96gb")
    libraries = Libraries(flex_attention=True)
    made, _ = layer("deepseek-v2-lite", 8 * 4096, seq=4096, batch=8, libraries=libraries)
    for name, measured_ms in (("mixed", 9.80), ("mixed'", 28.08)):
        (op,) = ops(made, name)
        assert 1e3 * op.compute_s(fabric) == pytest.approx(measured_ms, rel=0.02)


def test_windows_shorten_attention_and_keep_its_memory():
    """By the mean over layers; eager attention computes what a window leaves out."""
    model = get_architecture("gpt-oss-20b")
    whole = replace(model, window=0, num_windowed=0)

    def attention(of, **settings):
        made, _ = layer(of, TOKENS, Degrees(), seq=TOKENS, **settings)
        return made, [op for op in (*made.forward, *made.backward) if op.kind == "attention"]

    (made, some), (plain, every) = attention(model), attention(whole)
    share = model.seen_tokens(TOKENS) / (TOKENS / 2)
    assert share == pytest.approx(0.5 + (2 * 128 / TOKENS - (128 / TOKENS) ** 2) / 2)
    assert [one.flops for one in some] == [pytest.approx(share * one.flops) for one in every]
    assert len(some) == 2
    assert made.sizes == plain.sizes
    eager = [attention(one, eager_attention=True)[1] for one in (model, whole)]
    assert eager[0] == eager[1]

"""Layers whose attention has a window, against what transformers makes of the same files."""

from __future__ import annotations

import pytest
from small_configs import SMALL

from schedsim import SchedsimError
from schedsim.workloads import get_architecture
from schedsim.workloads.config_readers import read_architecture
from schedsim.workloads.config_windows import WINDOWS


def read(kind, **fields):
    found = read_architecture({"model_type": kind, **SMALL, "num_hidden_layers": 12, **fields}, "m")
    assert found.notes == ()
    return found.window, found.num_windowed


_LOCAL = {"num_local_experts": 6, "num_experts_per_tok": 2}
_NARROW = {"num_experts_per_tok": 2, "moe_intermediate_size": 40}
MORE = {
    "qwen3_moe": {"num_experts": 6, **_NARROW},
    "mixtral": _LOCAL,
    "gpt_oss": _LOCAL,
    "dots1": {"n_routed_experts": 6, **_NARROW},
}
USED = {"use_sliding_window": True}


@pytest.mark.parametrize(
    ("kind", "fields", "found"),
    [
        ("mistral", {"sliding_window": 64}, (64, 12)),
        ("mistral", {"sliding_window": None}, (0, 0)),
        ("mistral", {}, (4096, 12)),
        ("mixtral", {}, (0, 0)),
        ("phi3", {"sliding_window": 64}, (64, 12)),
        ("starcoder2", {"sliding_window": 64}, (64, 12)),
        ("ministral", {"sliding_window": 64}, (64, 12)),
        ("qwen2", {"sliding_window": 64, "max_window_layers": 8}, (0, 0)),
        ("qwen2", {"sliding_window": 64, "max_window_layers": 8, **USED}, (64, 4)),
        ("qwen3", {"sliding_window": 64, "max_window_layers": 8, **USED}, (64, 4)),
        ("qwen3_moe", {"sliding_window": 64, **USED}, (64, 12)),
        ("qwen3_moe", {"sliding_window": 64}, (0, 0)),
        ("dots1", {"sliding_window": 64, "max_window_layers": 10}, (64, 2)),
        ("smollm3", {"sliding_window": 64, **USED}, (64, 3)),
        ("gemma2", {"sliding_window": 64}, (64, 6)),
        ("gemma3_text", {"sliding_window": 64}, (64, 10)),
        ("gemma3_text", {"sliding_window": 64, "sliding_window_pattern": 3}, (64, 8)),
        ("exaone4", {"sliding_window": 64, "sliding_window_pattern": "LLLG"}, (64, 9)),
        ("exaone4", {"sliding_window": 64, "sliding_window_pattern": 2}, (64, 6)),
        ("exaone4", {"sliding_window": 64, "sliding_window_pattern": 0}, (0, 0)),
        ("olmo3", {"sliding_window": 64}, (64, 9)),
        ("gpt_oss", {}, (128, 6)),
    ],
)  # fmt: skip
def test_older_files_are_read_as_their_families_do(kind, fields, found):
    """By a width, a pattern, a first layer, and whether windows are used."""
    assert read(kind, **MORE.get(kind, {}), **fields) == found


@pytest.mark.parametrize("kind", sorted(set(WINDOWS) - {"gemma3"}))  # of gemma3_text
def test_windows_are_those_of_the_layers_that_transformers_makes(kind):
    """Of its own defaults; families that name no layers' kinds have a window in all or none."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    more = MORE.get(kind, {})
    sizes = {**SMALL, "num_hidden_layers": 12, **more}
    made = transformers.AutoConfig.for_model(kind, **sizes)
    kinds = getattr(made, "layer_types", None)
    num = 12 if kinds is None else kinds.count("sliding_attention")
    window = made.sliding_window if num else 0
    assert read(kind, **more) == ((window, num) if window else (0, 0))


def test_kinds_of_layers_come_first():
    """Other sizes of a published model repeat them."""
    kinds = ["full_attention", "sliding_attention"]
    assert read("qwen3", sliding_window=64, layer_types=kinds, use_sliding_window=True) == (64, 6)
    assert read("qwen3", sliding_window=64, layer_types=kinds[:1]) == (0, 0)
    for wrong in (["linear_attention"], [["full_attention"]], [{}], [], "full_attention"):
        with pytest.raises(SchedsimError, match="layer_types"):
            read("qwen3", sliding_window=64, layer_types=wrong)


def test_a_window_is_seen_in_its_layers_alone():
    """By counting for every token, and in the published models."""
    model = get_architecture("gpt-oss-20b")
    for seq in (64, 128, 1000):
        whole = sum(t + 0.5 for t in range(seq))
        windowed = sum(min(t + 0.5, 128.0) for t in range(seq))
        assert model.seen_tokens(seq) == pytest.approx((whole + windowed) / 2 / seq, rel=1e-9)
    assert [
        (one.window, one.num_windowed)
        for one in map(get_architecture, ("gemma3-1b", "gemma3-27b", "mistral-7b", "llama3-8b"))
    ] == [(512, 22), (1024, 52), (4096, 32), (0, 0)]

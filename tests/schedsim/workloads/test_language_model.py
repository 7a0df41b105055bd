"""Published language models: two accountings that agree, and what experts and latents keep."""

from dataclasses import replace

import pytest

import schedsim
from schedsim import SchedsimError
from schedsim.workloads import (
    ARCHITECTURES,
    PRESETS,
    LanguageModelConfig,
    WorkloadOptions,
    build_workload,
    get_architecture,
    transformer_model,
)
from schedsim.workloads.devices import Roofline, get_device
from schedsim.workloads.language_model import language_model
from schedsim.workloads.ops import to_chain, to_graph

ROOFLINE = Roofline(get_device("a100-80gb"), 1.0)


@pytest.mark.parametrize("attention", ["flash", "eager"])
@pytest.mark.parametrize("name", ["llama2-7b", "llama3-8b", "mistral-7b"])
def test_a_model_that_both_accountings_write_is_the_same(name, attention):
    """Stage by stage, sizes and seconds; and the graph's peak."""
    config = replace(PRESETS[name], num_layers=2, seq=256, batch=3, attention=attention)
    model = replace(get_architecture(name), num_layers=2)
    if model.window:
        config, model = replace(config, window=64), replace(model, window=64, num_windowed=2)
    other = LanguageModelConfig(
        architecture=model,
        seq=256,
        batch=3,
        attention=attention,
    )
    models = transformer_model(config), language_model(other)
    chains = [to_chain(model, ROOFLINE) for model in models]
    for mine, its in zip(chains[1].stages, chains[0].stages, strict=True):
        assert replace(mine, backward_s=0.0) == replace(its, backward_s=0.0)
        assert mine.backward_s == pytest.approx(its.backward_s, rel=1e-12)
    peaks = [
        schedsim.simulate(graph, schedsim.Schedule.store_all(graph)).peak_bytes
        for graph in (to_graph(model, ROOFLINE) for model in models)
    ]
    assert peaks[0] == peaks[1]


@pytest.mark.parametrize("name", [name for name, one in ARCHITECTURES.items() if one.gated])
def test_parameters_of_the_ops_are_those_of_the_sizes(name):
    """Op by op, and by the formula of the architecture."""
    config = LanguageModelConfig(architecture=get_architecture(name), seq=16)
    assert language_model(config).num_parameters == get_architecture(name).num_parameters


def test_what_a_layer_of_experts_keeps():
    """By hand, in 2-byte elements: 2 of 8 experts for each of 64 tokens, Mixtral's widths."""
    model = replace(get_architecture("mixtral-8x7b"), num_layers=1)
    chain = to_chain(language_model(LanguageModelConfig(architecture=model, seq=64)), ROOFLINE)
    h, kv, f, tokens = 4096, 1024, 14336, 64
    attention = tokens * (h + h + 2 * kv + h + h) * 2 + 4 * 32 * tokens
    sent = 2 * tokens
    # The norm's output, weights and choices; copies, gate, up, their product, the outputs.
    experts = tokens * h * 2 + sent * (2 + 8) + sent * (h + 3 * f + h) * 2
    assert chain.stages[1].saved_bytes == attention + experts + tokens * h * 2


def test_flops_of_experts_are_those_of_active_parameters():
    """Twice the weights that a token passes, without embedding and attention's products."""
    model = get_architecture("qwen3-30b-a3b")
    seq = 128
    record = language_model(LanguageModelConfig(architecture=model, seq=seq))
    names = ("qkv", "proj", "up", "down", "logits", "router", "expert_up", "expert_down")
    flops = sum(
        op.flops
        for stage in record.stages
        for op in stage.forward
        if op.name.rsplit(".", 1)[-1] in names
    )
    norms = model.num_layers * (2 * model.hidden + 2 * 128) + model.hidden
    weights = model.active_parameters - model.embedding_parameters - norms
    assert flops == 2 * seq * weights


def test_latent_attention_keeps_both_latents():
    """DeepSeek-V3's queries pass one of 1536, keys and values one of 512 and 64."""
    model = replace(get_architecture("deepseek-v3"), num_layers=1)
    stage = language_model(LanguageModelConfig(architecture=model, seq=8)).stages[1]
    sizes = {t: size // 16 for op in stage.forward for t, size in op.writes.items()}
    read = {t.removeprefix("attention.") for op in stage.backward for t in op.reads}
    kept = {t: sizes[f"attention.{t}"] for t in read if f"attention.{t}" in sizes}
    assert {name: kept[name] for name in ("q.down", "q.n", "kv.down", "kv.n")} == {
        "q.down": 1536,
        "q.n": 1536,
        "kv.down": 576,
        "kv.n": 512,
    }
    assert kept["q"] == kept["k"] == 128 * 192
    assert kept["kv"] == 128 * 256


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"hidden": 1024}, "--hidden 1024 does not go with qwen3-8b"),
        ({"tensor_parallel": 2}, "--tensor-parallel 2 does not go with"),
        ({"sequence_parallel": True}, "--sequence-parallel does not go with"),
        ({"attention": "selective"}, "--attention selective does not go with"),
        ({"allow": ("quantize",)}, "--allow does not go with"),
        ({"batch": 0}, "--batch 0 is not at least 1"),
        ({"seq": -1}, "--seq -1 is not at least 1"),
        ({"layers": 0}, "--layers 0 is not at least 1"),
    ],
)
def test_options_that_it_does_not_take_are_refused(options, says):
    """By name and value, with what to do."""
    with pytest.raises(SchedsimError) as caught:
        build_workload(WorkloadOptions(preset="qwen3-8b", **options))
    assert says in str(caught.value)
    assert caught.value.hint


def test_options_that_it_takes_change_the_model():
    """Layers, batch, sequence and format; a stage for attention and one for experts."""
    built = build_workload(
        WorkloadOptions(
            preset="deepseek-v2-lite", layers=3, batch=2, seq=64, dtype="fp32", granularity="block"
        )
    )
    assert built.workload.num_stages == 1 + 2 * 3 + 1
    assert built.assumptions[0] == (
        "3 layers of deepseek-v2-lite, micro-batch 2, sequence 64, fp32, flash attention, by block"
    )
    plan = schedsim.plan(built.workload, "70%")
    assert plan.feasible


def _flops_and_kept(name, seq, attention="flash", **changes):
    model = replace(get_architecture(name), num_layers=6, **changes)
    config = LanguageModelConfig(architecture=model, seq=seq, attention=attention)
    ops = [
        op for stage in language_model(config).stages for op in (*stage.forward, *stage.backward)
    ]
    return sum(op.flops for op in ops), [op.writes for op in ops]


def test_windows_lower_the_products_of_flash_attention_alone():
    """By the share of a causal mask that they leave out; bytes, short sequences, and eager stay."""
    windowed, whole = {"window": 128, "num_windowed": 3}, {"window": 0, "num_windowed": 0}
    few, kept = _flops_and_kept("gpt-oss-20b", 4096, **windowed)
    many, kept_of_all = _flops_and_kept("gpt-oss-20b", 4096, **whole)
    assert kept == kept_of_all
    sizes = get_architecture("gpt-oss-20b").attention
    # Seven products of a whole sequence in each layer: two forward, five backward.
    products = 6 * 7 * 2 * 4096 * 4096 * sizes.num_heads * sizes.head_width
    seen = (128 - 128**2 / (2 * 4096)) / 2048
    assert many - few == pytest.approx(products * (1 - (1 + seen) / 2), rel=1e-4)
    for seq, attention in ((128, "flash"), (4096, "eager")):
        ways = (_flops_and_kept("gpt-oss-20b", seq, attention, **it)[0] for it in (windowed, whole))
        assert len(set(ways)) == 1


@pytest.mark.parametrize("name", ["gpt-oss-20b", "gemma3-4b", "mistral-7b"])
def test_a_wider_window_takes_no_less_time(name):
    """And one as wide as the sequence as much as none."""
    found = [_flops_and_kept(name, 8192, window=2**k, num_windowed=3)[0] for k in range(4, 14)]
    assert found == sorted(found)
    assert found[-1] == _flops_and_kept(name, 8192, window=0, num_windowed=0)[0]

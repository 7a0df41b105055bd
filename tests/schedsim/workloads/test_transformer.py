"""Transformers: the arithmetic of Korthikanti et al. 2022, and agreement to the byte."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedsim import Chain, SchedsimError, Schedule, simulate
from schedsim.workloads import (
    PRESETS,
    Roofline,
    TransformerConfig,
    WorkloadOptions,
    build_workload,
    get_device,
    layer_saved_bytes,
    transformer_model,
)
from schedsim.workloads.ops import to_chain, to_graph

ROOFLINE = Roofline(get_device("a100-80gb"))
SHAPES = {"gpt-22b": (6144, 64, 4), "gpt3-175b": (12288, 96, 1),
          "mt-nlg-530b": (20480, 128, 1), "gpt-1t": (25600, 160, 1)}  # fmt: skip


def layer(hidden: int, heads: int, batch: int = 1, **more) -> TransformerConfig:
    return TransformerConfig(
        name="layer", num_layers=1, hidden=hidden, num_heads=heads, seq=2048, batch=batch, **more
    )


@pytest.mark.parametrize(("name", "term"), [("gpt3-175b", 80), ("mt-nlg-530b", 64)])
def test_attention_term(name, term):
    """5 a s / h is 80 for GPT-3 and 64 for MT-NLG: a layer keeps s b h (34 + that)."""
    hidden, heads, batch = SHAPES[name]
    assert layer_saved_bytes(layer(hidden, heads, batch)) == 2048 * batch * hidden * (34 + term)


@pytest.mark.parametrize(("name", "saves"), [("gpt3-175b", 70), ("mt-nlg-530b", 65)])
def test_selective_recomputation_saves(name, saves):
    """Without the attention core a layer keeps 34 s b h: 70 % and 65 % less.

    Flash attention is that, plus its statistics of 4 bytes per row and head.
    """
    hidden, heads, batch = SHAPES[name]
    whole = layer_saved_bytes(layer(hidden, heads, batch))
    flash = layer_saved_bytes(layer(hidden, heads, batch, attention="flash"))
    statistics = 4 * 2048 * batch * heads
    assert flash == 34 * 2048 * batch * hidden + statistics
    assert round(100 * (1 - (flash - statistics) / whole)) == saves


@pytest.mark.parametrize(
    ("name", "sequence", "selective", "both", "full"),
    [("gpt-22b", 66.8, 49.4, 16.1, 7.6), ("gpt3-175b", 62.0, 56.5, 18.5, 8.7),
     ("mt-nlg-530b", 58.3, 61.9, 20.2, 9.5), ("gpt-1t", 58.3, 61.9, 20.2, 9.5)],
)  # fmt: skip
def test_figure_7(name, sequence, selective, both, full):
    """Percentages of the tensor-parallel baseline, t = 8, from the layer's op records."""
    hidden, heads, batch = SHAPES[name]
    sbh = 2048 * batch * hidden

    def saved(**more) -> int:
        return layer_saved_bytes(layer(hidden, heads, batch, tensor_parallel=8, **more))

    statistics = 4 * 2048 * batch * heads // 8
    baseline = saved()
    found = (
        saved(sequence_parallel=True),
        saved(attention="flash") - statistics,
        saved(attention="flash", sequence_parallel=True) - statistics,
        2 * sbh,
    )
    expected = (sequence, selective, both, full)
    assert [round(100 * value / baseline, 1) for value in found] == list(expected)


@given(
    heads=st.sampled_from([8, 16, 32]),
    width=st.integers(1, 8),
    seq=st.sampled_from([64, 128, 256]),
    batch=st.integers(1, 4),
    parallel=st.sampled_from([1, 2, 4, 8]),
    sequence=st.booleans(),
    layers=st.integers(1, 3),
)
@settings(max_examples=60)
def test_granularities_agree_with_the_formula_to_the_byte(
    heads, width, seq, batch, parallel, sequence, layers
):
    """s b h (10 + 24/t + 5as/(ht)), or (34 + 5as/h)/t with sequence parallelism, at all three."""
    config = TransformerConfig(
        name="any", num_layers=layers, hidden=8 * heads * width, num_heads=heads, seq=seq,
        batch=batch, tensor_parallel=parallel, sequence_parallel=sequence and parallel > 1,
    )  # fmt: skip
    sbh = seq * batch * config.hidden
    scores = 5 * heads * seq * seq * batch // parallel
    undivided = 10 // (parallel if config.sequence_parallel else 1)
    if config.sequence_parallel:
        expected = 34 * sbh // parallel + scores
    else:
        expected = undivided * sbh + 24 * sbh // parallel + scores
    totals = []
    for split in (False, True):
        model = transformer_model(config, split_layers=split)
        chain = to_chain(model, ROOFLINE)
        totals.append(sum(stage.saved_bytes for stage in chain.stages))
        graph = to_graph(model, ROOFLINE)
        sizes = {t: size for op in graph.ops for t, size in op.writes.items()} | graph.inputs
        forward = {t for op in graph.ops if op.phase == "forward" for t in op.writes}
        read = {t for op in graph.ops if op.phase == "backward" for t in op.reads}
        kept = sum(sizes[t] for t in read if t in forward or t in graph.inputs)
        totals.append(kept)
    assert totals == [layers * expected] * 4


@pytest.mark.parametrize("granularity", ["layer", "block"])
@pytest.mark.parametrize("preset", ["gpt2", "llama2-7b", "vit-b16"])
def test_a_chain_is_never_cheaper_than_its_ops(preset, granularity):
    """The store-all peak of a chain covers that of the op graph, by under 3 %."""
    chain = build_workload(WorkloadOptions(preset=preset, granularity=granularity)).workload
    graph = build_workload(WorkloadOptions(preset=preset, granularity="op")).workload
    of_chain = simulate(chain, Schedule.store_all(chain))
    of_graph = simulate(graph, Schedule.store_all(graph))
    assert of_graph.peak_bytes <= of_chain.peak_bytes <= 1.03 * of_graph.peak_bytes
    assert of_chain.makespan_s == pytest.approx(of_graph.makespan_s, rel=1e-12)


def test_flops_of_a_layer():
    """24 b s h^2 + 4 b s^2 h forward in the products alone (section 5 of the paper)."""
    config = layer(12288, 96)
    stage = transformer_model(config).stages[0]
    names = ("qkv", "scores", "context", "proj", "up", "down")
    flops = sum(op.flops for op in stage.forward if op.name.split(".")[-1] in names)
    s, h = 2048, 12288
    assert flops == 24 * s * h * h + 4 * s * s * h


@pytest.mark.parametrize(
    ("name", "count"),
    [("gpt2", 124_439_808), ("gpt2-medium", 354_823_168), ("gpt2-large", 774_030_080),
     ("gpt2-xl", 1_557_611_200), ("llama2-7b", 6_738_415_616), ("llama2-13b", 13_015_864_320),
     ("llama2-70b", 68_976_648_192), ("vit-b16", 86_567_656)],
)  # fmt: skip
def test_parameter_counts(name, count):
    """As the released models have."""
    assert PRESETS[name].num_parameters == count


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"layers": 0}, "--layers 0"),
        ({"layers": 2, "batch": -1}, "--batch -1"),
        ({"layers": 2, "heads": 7}, "not a multiple"),
        ({"layers": 2, "tensor_parallel": 7}, "--tensor-parallel 7"),
        ({"layers": 2, "sequence_parallel": True}, "--sequence-parallel"),
        ({"layers": 2, "attention": "fast"}, "--attention"),
        ({"layers": 2, "dtype": "fp8"}, "--dtype"),
        ({"layers": 2, "granularity": "atom"}, "--granularity"),
        ({"layers": 2, "device": "h1000"}, "--device"),
        ({"layers": 2, "efficiency": 0.0}, "--efficiency"),
        ({"layers": 2, "zero_stage": 1}, "--static auto"),
        ({"preset": "gpt2xl"}, "--preset"),
        ({"preset": "resnet-50", "heads": 4}, "--heads"),
        ({"preset": "resnet-50", "granularity": "block"}, "residual block"),
        ({"preset": "vit-b16", "seq": 10}, "--seq"),
        ({"synthetic": "uniform"}, "--layers"),
        ({"synthetic": "unifrom", "layers": 3}, "--synthetic"),
        ({"synthetic": "uniform", "layers": 3, "hidden": 8}, "--hidden"),
        ({}, "no workload"),
    ],
)
def test_contradictions_are_named(options, says):
    """The message names the option, and there is a hint where one helps."""
    with pytest.raises(SchedsimError, match=says):
        build_workload(WorkloadOptions(**options))


def test_layers_alone_is_said():
    """96 layers: gpt3-175b at micro-batch 1, sequence 2048 in fp16, no model state."""
    built = build_workload(WorkloadOptions(layers=96))
    assert isinstance(built.workload, Chain)
    assert built.workload.static_bytes == 0
    line = built.assumptions[0]
    for part in ("96 layers of gpt3-175b", "micro-batch 1", "sequence 2048", "fp16"):
        assert part in line

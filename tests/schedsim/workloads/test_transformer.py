"""Transformers: the arithmetic of Korthikanti et al. 2022, and agreement to the byte."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from schedsim import Graph, Schedule, simulate
from schedsim.workloads import (
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
    sizes = {"num_layers": 1, "hidden": hidden, "num_heads": heads, "seq": 2048, "batch": batch}
    return TransformerConfig(name="layer", **(sizes | more))


def kept_bytes(graph: Graph) -> int:
    """Sizes of all forward tensors and inputs that backward ops read."""
    sizes = dict(graph.inputs)
    for op in graph.ops:
        if op.phase == "forward":
            sizes |= op.writes
    read = {tensor for op in graph.ops if op.phase == "backward" for tensor in op.reads}
    return sum(size for tensor, size in sizes.items() if tensor in read)


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
@settings(max_examples=examples(60))
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
    if config.sequence_parallel:
        expected = 34 * sbh // parallel + scores
    else:
        expected = 10 * sbh + 24 * sbh // parallel + scores
    assert layer_saved_bytes(config) == expected
    totals = []
    for split in (False, True):
        model = transformer_model(config, split_layers=split)
        chain = to_chain(model, ROOFLINE)
        totals.append(sum(stage.saved_bytes for stage in chain.stages))
        # The graph keeps the first layer's input instead of the last layer's output: as large.
        totals.append(kept_bytes(to_graph(model, ROOFLINE)))
    assert totals == [layers * expected] * 4


@pytest.mark.parametrize("parallel", [1, 8])
@pytest.mark.parametrize("layers", [1, 3])
def test_embedding_and_head(layers, parallel):
    """Section 4.3: with one pipeline stage, s b h / t of dropout mask and 4 s b h / t (1 + v / h).

    The latter are input and output of the last norm and the logits in fp32. Ours adds the token
    numbers, 8 bytes each.
    """
    config = layer(6144, 64, 4, num_layers=layers, tensor_parallel=parallel, vocab=51200,
                   sequence_parallel=parallel > 1, embedding=True, head=True)  # fmt: skip
    tokens = 2048 * 4
    extras = tokens * 6144 // parallel + 4 * tokens * (6144 + 51200) // parallel
    expected = layers * layer_saved_bytes(config) + extras + 8 * tokens
    for split in (False, True):
        model = transformer_model(config, split_layers=split)
        chain = to_chain(model, ROOFLINE)
        graph = to_graph(model, ROOFLINE)
        assert chain.input_bytes + sum(stage.saved_bytes for stage in chain.stages) == expected
        # The logits are read by the loss alone.
        assert kept_bytes(graph) + 4 * tokens * 51200 // parallel == expected


@given(
    heads=st.sampled_from([2, 4, 8]),
    seq=st.sampled_from([16, 64]),
    layers=st.integers(1, 3),
    parallel=st.sampled_from([1, 2]),
    attention=st.sampled_from(["eager", "flash"]),
    dtype=st.sampled_from(["fp16", "fp32"]),
    flags=st.tuples(*[st.booleans()] * 5),
    vocab=st.sampled_from([8, 5000]),
    split=st.booleans(),
)
@settings(max_examples=examples(150), deadline=None)
def test_a_chain_is_never_cheaper_than_its_ops_anywhere(
    heads, seq, layers, parallel, attention, dtype, flags, vocab, split
):
    """Store-all and recompute-all: the chain's peak bounds that of the same schedule of its ops."""
    gated, dropout, sequence, embedding, head = flags
    config = TransformerConfig(
        name="any", num_layers=layers, hidden=16 * heads, num_heads=heads, seq=seq, dtype=dtype,
        attention=attention, gated=gated, rms_norm=gated, dropout=dropout, vocab=vocab,
        num_kv_heads=heads // 2 if gated and parallel == 1 else 0, tensor_parallel=parallel,
        sequence_parallel=sequence and parallel > 1, embedding=embedding, head=head,
    )  # fmt: skip
    model = transformer_model(config, split_layers=split)
    chain, graph = to_chain(model, ROOFLINE), to_graph(model, ROOFLINE)
    names = [
        {
            "F": [f"{stage.name}.{op.name}" for op in stage.forward],
            "B": [f"{stage.name}.{op.name}" for op in stage.backward],
        }
        for stage in model.stages
    ]
    num = chain.num_stages
    recompute = [f"F{i}" for i in range(num)] + ["loss"]
    for i in reversed(range(num)):
        recompute += [f"F{i}", f"B{i}"]
    for runs in (list(chain.op_names), recompute):
        ops = []
        for run in runs:
            ops += [run] if run == "loss" else names[int(run[1:])][run[0]]
        of_chain = simulate(chain, Schedule.from_names(runs))
        of_graph = simulate(graph, Schedule.from_names(ops))
        assert of_graph.peak_bytes <= of_chain.peak_bytes
        assert of_chain.makespan_s == pytest.approx(of_graph.makespan_s, rel=1e-9)


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

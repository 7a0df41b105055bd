"""Bytes and flops of a layer, against closed forms."""

from dataclasses import replace

import pytest
from cluster_layers import FABRIC, layer

from schedsim.clusters import Degrees, Training, get_architecture
from schedsim.clusters.layer_ops import LayerWriter
from schedsim.clusters.layer_recompute import kept_tensors, repeated_ops
from schedsim.clusters.stages import routed_share


def held(made, training, policy):
    """Bytes that a layer holds for its backward, its input included."""
    kept = kept_tensors(made, policy, training) | {"x"}
    again = repeated_ops(made, kept, training)
    read = {t for op in (*again, *made.backward) for t in op.reads}
    return sum(made.sizes[t] for t in kept & read)


@pytest.mark.parametrize("tensor", [1, 2, 8])
@pytest.mark.parametrize(
    ("policy", "per_token"), [("none", 34 + 5 * 64 * 2048 / 6144), ("core", 34), ("full", 2)]
)
def test_korthikanti_table_2(tensor, policy, per_token):
    """s b h (34 + 5 a s / h) / t with sequence parallelism; 34 of it without the core."""
    made, training = layer(
        "gpt-22b",
        4 * 2048,
        Degrees(tensor=tensor),
        seq=2048,
        batch=4,
        eager_attention=True,
        regather=True,
        state="megatron",
    )
    assert held(made, training, policy) == round(4 * 2048 * 6144 * per_token / tensor)


@pytest.mark.parametrize("tensor", [2, 8])
@pytest.mark.parametrize(("policy", "scores"), [("none", 5 * 64 * 2048 / 6144), ("core", 0)])
def test_korthikanti_table_2_without_sequence_parallelism(tensor, policy, scores):
    """s b h (10 + 24 / t + 5 a s / (h t)): norms, dropouts and inputs are whole on every rank."""
    made, training = layer(
        "gpt-22b",
        4 * 2048,
        Degrees(tensor=tensor),
        seq=2048,
        batch=4,
        eager_attention=True,
        regather=True,
        whole_sequence=True,
        state="megatron",
    )
    per_token = 10 + (24 + scores) / tensor
    assert held(made, training, policy) == round(4 * 2048 * 6144 * per_token)


def test_tensor_parallel_ranks_with_whole_sequences_add_up_four_times():
    """Outputs of attention and MLP forward, gradients of their inputs backward, on every rank."""
    made, _ = layer("llama3-8b", 1024, Degrees(tensor=8), whole_sequence=True)
    messages = [op for op in (*made.forward, *made.backward) if op.stream == "tensor"]
    assert [op.name for op in messages] == ["o.part", "m.part", "n2.whole'", "n1.whole'"]
    size = 1024 * 4096 * 2
    assert {op.link_s for op in messages} == {FABRIC.all_reduce_s(size, 8, 8)}
    assert made.sizes["x"] == made.sizes["n1"] == made.sizes["o.part"] == size


@pytest.mark.parametrize(
    ("model", "tensor"), [("llama3-8b", 1), ("llama3-70b", 8), ("gpt3-175b", 8)]
)
def test_flops_of_a_dense_layer(model, tensor):
    """Two for each weight and token forward, four backward; attention sees half of the sequence."""
    tokens, seq = 4096, 4096
    made, _ = layer(model, tokens, Degrees(tensor=tensor), seq=seq)
    sizes = get_architecture(model)
    weights = sum(made.weights.values()) // 2
    attention = sizes.attention
    pairs = tokens * seq / 2 * (attention.query_width + attention.output_width) / tensor
    products = [op for op in made.forward if op.kind == "product"]
    assert sum(op.flops for op in products) == 2 * tokens * weights
    assert sum(op.flops for op in made.forward if op.kind == "attention") == 2 * pairs
    assert sum(op.flops for op in made.backward) == 4 * tokens * weights + 5 * pairs
    matrices = sizes.layer_parameters(0) - 2 * sizes.norm_parameters
    assert weights * tensor == pytest.approx(matrices, rel=1e-3)


@pytest.mark.parametrize("model", ["mixtral-8x7b", "deepseek-v3", "gpt-oss-20b", "qwen3-30b-a3b"])
def test_weights_of_a_layer_with_experts(model):
    """All of the layer's, but norms and biases."""
    made, _ = layer(model, 512)
    sizes = get_architecture(model)
    weights = sum(made.weights.values()) // 2
    assert weights == pytest.approx(sizes.layer_parameters(sizes.num_layers - 1), rel=2e-3)


def test_whole_experts_on_tensor_parallel_ranks():
    """Each rank sends its part of the tokens, to experts of full width.

    The shared expert alone is split, and gathers the sequence. All parameters are somewhere.
    """
    degrees = Degrees(fsdp=4, tensor=2, expert=8, whole_experts=True)
    split, _ = layer("deepseek-v2-lite", 512, Degrees(fsdp=4, tensor=2, expert=4))
    whole, _ = layer("deepseek-v2-lite", 512, degrees)
    assert whole.weights == split.weights
    assert 2 * whole.sizes["arrived"] == split.sizes["arrived"]
    assert 2 * whole.sizes["combined"] == split.sizes["combined"]
    assert whole.sizes["e.gate"] == split.sizes["e.gate"]
    flops = [
        sum(op.flops for op in one.forward if op.name.startswith("e.")) for one in (whole, split)
    ]
    assert flops[0] == flops[1]
    alone, _ = layer("mixtral-8x7b", 512, replace(degrees, expert=2))
    messages = [op.name for op in (*alone.forward, *alone.backward) if op.stream == "tensor"]
    assert messages == ["n1.whole", "o.part", "o.part'", "n1.whole'"]
    model = get_architecture("deepseek-v2-lite")
    routed = sum(model.routed_parameters(i) for i in range(model.num_layers))
    mine = sum(routed_share(model, degrees, i) for i in range(model.num_layers))
    assert mine * degrees.expert == routed


def test_expert_parallel_ranks_hold_a_part_of_the_experts():
    """An eighth of them, and send every token there and back."""
    one, _ = layer("mixtral-8x7b", 512)
    many, _ = layer("mixtral-8x7b", 512, Degrees(fsdp=8, expert=8))
    names = ("g.e.gate", "g.e.up", "g.e.down")
    assert [one.weights[n] for n in names] == [8 * many.weights[n] for n in names]
    messages = [op.name for op in (*many.forward, *many.backward) if op.stream == "expert"]
    assert messages == ["arrived", "returned", "returned'", "arrived'"]


def test_parts_of_several_sequences_are_copied():
    """A message over the second dimension holds its whole twice, but for asynchronous ranks."""
    for more, rows, copied in (({}, 2, True), ({}, 1, False), ({"async_tensor": True}, 2, False)):
        training = Training(batch=rows, seq=1024, **more)
        model = get_architecture("llama3-8b")
        made = LayerWriter(model, Degrees(tensor=8), training, rows * 1024, FABRIC).layer(False)
        gather = next(op for op in made.forward if op.name == "n1.whole")
        assert gather.writes.get("n1.whole.copy", 0) == copied * 2 * rows * 1024 * 4096
        assert "n1.whole.copy" not in kept_tensors(made, "none", training)


def test_one_head_of_keys_is_expanded_in_a_view():
    """Copies for the heads of queries take no bytes; their gradients do until they are added."""
    for tensor in (8, 4):
        made, _ = layer("llama3-70b", 4096, Degrees(tensor=tensor), seq=4096)
        assert ("k.turned.wide" in made.sizes) == (tensor == 4)
        mixed = next(op for op in made.backward if op.name == "mixed'")
        summed = next(op for op in made.backward if op.name == "k.turned.wide'")
        (size,) = summed.writes.values()
        assert size == 2 * 4096 * 8 * 128 // tensor
        assert sum(mixed.writes[one] for one in summed.reads) == 8 * size


def test_a_module_holds_its_variables_and_its_layer_the_weights():
    """Until it has returned, where nothing is kept for the backward."""
    made, _ = layer("llama3-8b", 4096, Degrees(tensor=2), seq=4096)
    last = {t: op.name for op in made.forward for t in op.reads}
    for name in ("n1", "n1.whole", "q.turned", "k.turned.wide", "v.wide", "mixed"):
        assert last[name] == "o.part"
    assert last["n2"] == last["n2.whole"] == "m.part"
    assert last["W"] == "out"

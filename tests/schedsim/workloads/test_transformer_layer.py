"""Attention and MLP blocks op by op: counted by hand, and closed for every shape of model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from schedsim.workloads import TransformerConfig
from schedsim.workloads.ops import StageRecord
from schedsim.workloads.transformer_layer import attention_block, linear, mlp_block, norm_parameters


def config(**more) -> TransformerConfig:
    """Width 4 in 2 heads, 3 tokens, fp16."""
    sizes = {"num_layers": 1, "hidden": 4, "num_heads": 2, "seq": 3, "dropout": False}
    return TransformerConfig(name="tiny", **(sizes | more))


def op(stage: StageRecord, name: str):
    (found,) = [one for one in (*stage.forward, *stage.backward) if one.name == name]
    return found


def test_attention_by_hand():
    """12 elements of 2 bytes for the tokens, 2 x 3 x 3 scores; products of 2 m n k."""
    stage = attention_block(config())
    assert [one.name for one in stage.forward] == [
        *("norm", "qkv", "scores", "softmax", "context", "proj", "residual")
    ]
    assert [one.name for one in stage.backward] == [
        *("proj'", "context'", "softmax'", "scores'", "qkv'", "norm'")
    ]
    assert op(stage, "qkv").flops == 2 * 3 * 4 * 12
    assert op(stage, "qkv").parameter_bytes == (4 * 12 + 12) * 2
    assert dict(op(stage, "qkv").writes) == {"q": 24, "k": 24, "v": 24}
    assert dict(op(stage, "softmax").writes) == {"p": 36}
    assert op(stage, "scores").flops == op(stage, "context").flops == 2 * 3 * 3 * 4
    assert op(stage, "context'").flops == op(stage, "scores'").flops == 2 * 2 * 3 * 3 * 4
    assert op(stage, "proj").flops == 2 * 3 * 4 * 4
    assert op(stage, "qkv'").flops == 2 * op(stage, "qkv").flops
    # Weights and biases of both products, gain and shift of the norm.
    assert stage.num_parameters == 4 * 12 + 12 + 4 * 4 + 4 + 8


def test_an_mlp_by_hand():
    """Width 16 inside: 48 elements; the gated one has two products up, and no biases here."""
    stage = mlp_block(config())
    assert [one.name for one in stage.forward] == ["norm", "up", "gelu", "down", "residual"]
    assert dict(op(stage, "gelu").writes) == {"m": 96}
    assert op(stage, "up").flops == op(stage, "down").flops == 2 * 3 * 4 * 16
    assert op(stage, "gelu'").reads == ("d.m", "g")
    assert stage.num_parameters == 2 * 4 * 16 + 16 + 4 + 8
    gated = mlp_block(config(gated=True, ffn=16, bias=False, rms_norm=True))
    assert op(gated, "up").flops == 2 * 2 * 3 * 4 * 16
    assert op(gated, "up").parameter_bytes == 2 * 4 * 16 * 2
    assert op(gated, "silu_mul'").reads == ("d.m", "g", "u")
    assert gated.num_parameters == 3 * 4 * 16 + 4


def test_dropout_keeps_a_mask_of_a_byte_an_element():
    """Masks of the scores and of both branches; the branch's gradient is then a separate tensor."""
    stage = attention_block(config(dropout=True))
    assert dict(op(stage, "softmax_dropout").writes) == {"pm": 18, "pd": 36}
    assert op(stage, "softmax_dropout").optional == ("pm",)
    assert op(stage, "context").reads == ("pd", "v")
    assert dict(op(stage, "residual").writes) == {"out": 24, "mask": 12}
    assert op(stage, "residual'").reads == ("d.out", "mask")
    assert op(stage, "proj'").reads == ("d.o", "c")
    assert op(attention_block(config()), "proj'").reads == ("d.out", "c")


def test_flash_attention_keeps_rows_and_not_scores():
    """4 bytes a row and head; its backward computes five products for the forward's two."""
    stage = attention_block(config(attention="flash"))
    attention = op(stage, "attention")
    assert dict(attention.writes) == {"c": 24, "lse": 4 * 2 * 3}
    assert attention.optional == ("lse",)
    assert op(stage, "attention'").flops * 2 == attention.flops * 5
    assert not any("s" in one.writes for one in stage.forward)


def test_selective_recomputation_runs_the_core_again():
    """Scores, softmax and its dropout before the first backward op that reads them; no product."""
    eager = attention_block(config(dropout=True))
    stage = attention_block(config(dropout=True, attention="selective"))
    names = [one.name for one in stage.backward]
    at = names.index("scores again")
    assert names[at : at + 3] == ["scores again", "softmax again", "softmax_dropout again"]
    assert names[at + 3] == "context'"
    assert [n for n in names if not n.endswith("again")] == [one.name for one in eager.backward]
    assert op(stage, "context'").reads == ("d.c", "pd.again", "v")
    assert op(stage, "softmax again").reads == ("s.again",)
    assert sum(one.flops for one in stage.backward) - sum(
        one.flops for one in eager.backward
    ) == sum(op(eager, name).flops for name in ("scores", "softmax", "softmax_dropout"))
    read = {tensor for one in stage.backward for tensor in one.reads}
    assert not read & {"s", "p", "pd", "pm"}


def test_grouped_queries_have_smaller_keys():
    """One key head for two of queries: half the bytes of k and v, and of their products."""
    stage = attention_block(config(num_kv_heads=1, bias=False))
    assert dict(op(stage, "qkv").writes) == {"q": 24, "k": 12, "v": 12}
    assert op(stage, "qkv").flops == 2 * 3 * 4 * 8
    assert dict(op(stage, "scores'").writes) == {"d.q": 24, "d.k": 12}
    assert stage.num_parameters == 4 * 8 + 4 * 4 + norm_parameters(config())


def test_ranks_share_products_and_with_sequences_tokens_too():
    """t = 2: half the products; of the tokens only with sequence parallelism, gathered to work."""
    whole, half = attention_block(config()), attention_block(config(tensor_parallel=2))
    assert op(half, "qkv").flops * 2 == op(whole, "qkv").flops
    assert op(half, "norm").writes == op(whole, "norm").writes
    assert op(half, "qkv").workspace_bytes == 0
    split = attention_block(config(tensor_parallel=2, sequence_parallel=True))
    assert dict(op(split, "norm").writes) == {"n": 12}
    assert op(split, "qkv").workspace_bytes == op(split, "proj").workspace_bytes == 24
    assert op(split, "qkv'").workspace_bytes == 48  # the input, and its gradient
    assert mlp_block(config(tensor_parallel=2, sequence_parallel=True)).forward[
        1
    ].workspace_bytes == (24)


def test_a_product_and_its_weights():
    """2 m n k; a bias is as wide as what comes out."""
    assert linear(3, 4, 5, True, 2) == (120, 50)
    assert linear(3, 4, 5, False, 4) == (120, 80)


@given(
    attention=st.sampled_from(["eager", "flash", "selective"]),
    dropout=st.booleans(),
    gated=st.booleans(),
    parallel=st.sampled_from([1, 2]),
    sequence=st.booleans(),
)
def test_every_block_is_closed(attention, dropout, gated, parallel, sequence):
    """Each op reads what is there: the input, what stands before it, the output's gradient.

    The gradient of each product is as large as what it is the gradient of.
    """
    shape = config(
        attention=attention, dropout=dropout, gated=gated, tensor_parallel=parallel,
        sequence_parallel=sequence and parallel > 1,
    )  # fmt: skip
    for stage in (attention_block(shape), mlp_block(shape)):
        sizes = {"in": stage.forward[-1].writes["out"]}
        for one in stage.forward:
            assert set(one.reads) <= set(sizes), one.name
            sizes |= one.writes
        sizes["d.out"] = sizes["out"]
        for one in stage.backward:
            assert set(one.reads) <= set(sizes), one.name
            for tensor, size in one.writes.items():
                if not tensor.endswith("again"):
                    assert size == sizes[tensor.removeprefix("d.")], tensor
            sizes |= one.writes
        assert sizes["d.in"] == sizes["in"]

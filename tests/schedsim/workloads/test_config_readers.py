"""Sizes of families, against the models that transformers makes of the same configuration."""

from __future__ import annotations

import pytest
from small_configs import SMALL

from schedsim import SchedsimError
from schedsim.workloads.config_readers import READERS, read_architecture
from schedsim.workloads.language_model import language_model
from schedsim.workloads.presets import config_of
from schedsim.workloads.transformer import TransformerConfig, transformer_model

# model_type -> what its configuration has besides; every family that a reader knows is here.
FAMILIES = {
    "llama": {},
    "mistral": {"head_dim": 32},
    "ministral": {"head_dim": 32},
    "ministral3": {"head_dim": 32},
    "granite": {"attention_bias": True},
    "smollm3": {"pad_token_id": 0},
    "gemma": {"head_dim": 32},
    "gpt_neox": {},
    "starcoder2": {},
    "phi3": {"pad_token_id": 0},
    "qwen2": {},
    "qwen3": {"head_dim": 32, "tie_word_embeddings": True},
    "qwen3_moe": {"head_dim": 32, "num_experts": 6, "num_experts_per_tok": 2,
                  "moe_intermediate_size": 40},
    "mixtral": {"num_local_experts": 6},
    "gpt_oss": {"head_dim": 32, "num_local_experts": 6, "num_experts_per_tok": 2},
    "deepseek_v2": {"q_lora_rank": None, "kv_lora_rank": 24, "qk_nope_head_dim": 16,
                    "qk_rope_head_dim": 8, "v_head_dim": 12, "n_routed_experts": 6,
                    "num_experts_per_tok": 2, "moe_intermediate_size": 40, "n_shared_experts": 2,
                    "first_k_dense_replace": 1},
    "deepseek_v3": {"q_lora_rank": 32, "kv_lora_rank": 24, "qk_nope_head_dim": 16,
                    "qk_rope_head_dim": 8, "v_head_dim": 12, "n_routed_experts": 8,
                    "num_experts_per_tok": 2, "moe_intermediate_size": 40, "n_shared_experts": 1,
                    "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1},
    "gemma2": {"head_dim": 32},
    "gemma3_text": {"head_dim": 32},
    "arcee": {"head_dim": 16},
    "internlm3": {"head_dim": 32},
    "iquestcoder": {"head_dim": 32},
    "ernie4_5": {"head_dim": 32},
    "exaone4": {},
    "glm": {"head_dim": 32, "pad_token_id": 0},
    "glm4": {"head_dim": 32, "pad_token_id": 0},
    "hunyuan_v1_dense": {"head_dim": 32},
    "jais2": {"head_dim": 32},
    "olmo2": {"pad_token_id": 0},
    "olmo3": {"pad_token_id": 0},
    "seed_oss": {"head_dim": 32},
    "granitemoe": {"num_local_experts": 6, "num_experts_per_tok": 2},
    "minimax_m2": {"head_dim": 32, "num_local_experts": 6, "num_experts_per_tok": 2},
    "olmoe": {"num_experts": 6, "num_experts_per_tok": 2, "pad_token_id": 0},
    "dots1": {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
              "n_shared_experts": 2, "first_k_dense_replace": 1},
    "ernie4_5_moe": {"moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 40},
    "glm4_moe": {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
                 "use_qk_norm": True, "pad_token_id": 0},
    "solar_open": {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
                   "head_dim": 32, "pad_token_id": 0},
    "gpt2": {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 50, "n_inner": 100},
}  # fmt: skip


# Fields that a user may turn round, where a family has them.
FLAGS = ("tie_word_embeddings", "attention_bias", "attention_out_bias", "use_qk_norm")


def _trainable(config):
    """Parameters of the model of `config`, made on no memory; what routing counts is left out."""
    import torch
    import transformers

    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    kept = [(name, p.numel()) for name, p in model.named_parameters()]
    assert not any("mtp" in name for name, _ in kept)
    return sum(number for name, number in kept if not name.endswith("correction_bias"))


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_are_those_of_the_model_that_transformers_makes(family):
    """With each flag as the family has it, and turned round; and so has the formula's model."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from huggingface_hub.errors import StrictDataclassError

    sizes = FAMILIES[family] if family == "gpt2" else {**SMALL, **FAMILIES[family]}
    first = transformers.AutoConfig.for_model(family, **sizes).to_dict()
    num_counted = 0
    for flag in (None, *FLAGS):
        if flag is not None and flag not in first:
            continue
        turned = {} if flag is None else {flag: not first[flag]}
        try:
            config = transformers.AutoConfig.for_model(family, **{**sizes, **turned})
            found = read_architecture(config.to_dict(), family)
        except (SchedsimError, StrictDataclassError):  # no formula has it, or no model
            assert flag is not None
            continue
        assert found.num_parameters == _trainable(config)
        made = config_of(found)
        make = transformer_model if isinstance(made, TransformerConfig) else language_model
        assert make(made).num_parameters == found.num_parameters
        num_counted += 1
    assert num_counted > 1


def test_every_family_is_tried():
    """A reader without such a test could be wrong."""
    # gemma3 is gemma3_text inside of another, and Kimi K2 is a DeepSeek V3 of other sizes.
    assert set(READERS) == {*FAMILIES, "gemma3", "kimi_k2"}


def test_a_language_model_inside_of_another():
    """Its own sizes, and what the whole says of the head."""
    inner = {**SMALL, "model_type": "gemma3_text", "head_dim": 32}
    found = read_architecture({"model_type": "gemma3", "text_config": inner}, "seeing")
    assert found == read_architecture(inner, "seeing's language model")
    untied = {"model_type": "gemma3", "text_config": inner, "tie_word_embeddings": False}
    assert not read_architecture(untied, "seeing").tied
    low = {**untied, "quantization_config": {"quant_method": "gptq"}}
    assert any("quantization_config" in note for note in read_architecture(low, "seeing").notes)


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"model_type": "rwkv"}, "'rwkv' has no formula"),
        ({}, "None has no formula"),
        ({"model_type": "llama"}, "hidden_size is missing"),
        ({"model_type": "llama", **SMALL, "hidden_size": "64"}, "hidden_size '64' is not"),
        ({"model_type": "llama", **SMALL, "num_hidden_layers": True}, "True is not"),
        ({"model_type": "llama", **SMALL, "num_attention_heads": 3}, "3 heads over 2"),
        ({"model_type": "llama", **SMALL, "num_attention_heads": 0}, "0 heads"),
        ({"model_type": "llama", **SMALL, "mlp_bias": True}, "mlp_bias True"),
        ({"model_type": "qwen3_moe", **SMALL, "decoder_sparse_step": 2}, "every layer"),
        ({"model_type": "dots1", **SMALL, "moe_layer_freq": 2}, "every layer"),
        ({"model_type": "deepseek_v2", **SMALL, "mlp_bias": True}, "mlp_bias True"),
        ({"model_type": "gpt2", "add_cross_attention": True}, "add_cross_attention True"),
        ({"model_type": "llama", **SMALL, "hidden_act": "sillu"}, "hidden_act 'sillu'"),
        ({"model_type": "gpt2", "n_embd": 10, "n_head": 3}, "3 heads of a width of 10"),
    ],
)
def test_what_no_formula_has_is_refused(document, says):
    """With the model and the field."""
    with pytest.raises(SchedsimError) as caught:
        read_architecture(document, "odd")
    assert says in str(caught.value)
    assert str(caught.value).startswith("odd")


def family(kind, hidden, layers, heads, inner, vocab, tied=False, **more):
    """A published ``config.json``, as far as it counts parameters."""
    return {
        "model_type": kind,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "intermediate_size": inner,
        "vocab_size": vocab,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": tied,
        **more,
    }


LATENT = {
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "n_routed_experts": 384, "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048, "n_shared_experts": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("document", "count"),
    [
        (family("qwen2", 3584, 28, (28, 4), 18944, 152064), 7_615_616_512),  # Qwen2.5 7B
        (family("qwen2", 896, 24, (14, 2), 4864, 151936, True), 494_032_768),  # Qwen2.5 0.5B
        (family("phi3", 5120, 40, (40, 10), 17920, 100352), 14_659_507_200),  # Phi-4
        (family("phi3", 3072, 32, (24, 8), 8192, 200064, True), 3_836_021_760),  # Phi-4-mini
        (
            family("gemma3_text", 640, 18, (4, 1), 2048, 262144, True, head_dim=256),
            268_098_176,  # Gemma 3 270M
        ),
        (family("qwen2", 8192, 80, (64, 8), 29568, 152064), 72_706_203_648),  # Qwen2.5 72B
        (
            family("mistral", 5120, 40, (32, 8), 32768, 131072, head_dim=128),
            23_572_403_200,  # Mistral Small 3
        ),
        (family("olmo2", 4096, 32, (32, 32), 11008, 100352), 7_298_617_344),  # OLMo 2 7B
        (family("smollm3", 2048, 36, (16, 4), 11008, 128256, True), 3_075_098_624),  # SmolLM3 3B
        (family("granite", 4096, 40, (32, 8), 12800, 49159, True), 8_170_864_640),  # Granite 3.3
        (
            family("seed_oss", 5120, 64, (80, 8), 27648, 155136, head_dim=128),
            36_151_104_512,  # Seed-OSS 36B
        ),
        (
            family("kimi_k2", 7168, 61, (64, 64), 18432, 163840, **LATENT, first_k_dense_replace=1),
            1_026_408_232_448 - 60 * 384,  # Kimi K2, without what balances its router
        ),
    ],
)
def test_published_counts_of_models_that_are_no_preset(document, count):
    """What their model cards say, and transformers on the meta device."""
    assert read_architecture(document, "published").num_parameters == count


def test_what_is_dropped_at_random_is_the_configurations():
    """GPT-2 says so by itself; GPT-NeoX and StarCoder2 only where they ask for it."""
    neox = {"model_type": "gpt_neox", **SMALL}
    assert not read_architecture(neox, "neox").dropout
    assert read_architecture({**neox, "hidden_dropout": 0.1}, "neox").dropout
    gpt2 = {"model_type": "gpt2", "vocab_size": 120, **FAMILIES["gpt2"]}
    assert read_architecture(gpt2, "gpt2").dropout
    assert not read_architecture({**gpt2, "resid_pdrop": 0.0}, "gpt2").dropout


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_experts_per_tok": 9}, "each token goes to 9 of 8 experts"),
        ({"num_experts_per_tok": 0}, "each token goes to 0 of 8 experts"),
        ({"num_local_experts": 0}, "each token goes to 2 of 0 experts"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"hidden_size": 10**12}, "hidden_size 1000000000000 is more than any model has"),
    ],
)
def test_sizes_that_no_model_has_are_refused(changes, says):
    """They were predicted, or ended in an error of numpy's."""
    experts = {"num_local_experts": 8, "num_experts_per_tok": 2}
    document = family("mixtral", 512, 4, (8, 4), 1376, 1000, **experts)
    assert read_architecture(document, "small").experts.num_active == 2
    with pytest.raises(SchedsimError, match=says):
        read_architecture({**document, **changes}, "small")

"""Sizes from a model's own configuration, against the models that transformers makes of it."""

from __future__ import annotations

import json

import pytest

from schedsim import SchedsimError
from schedsim.workloads import PRESETS, WorkloadOptions, build_workload
from schedsim.workloads.hf_configs import (
    PUBLISHED,
    READERS,
    hf_architecture,
    hf_config,
    read_architecture,
)
from schedsim.workloads.language_model import language_model
from schedsim.workloads.presets import config_of
from schedsim.workloads.transformer import TransformerConfig, transformer_model

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 120,
}
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
    "gpt2": {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 50, "n_inner": 100},
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_are_those_of_the_model_that_transformers_makes(family):
    """From its own dictionary, on no memory; buffers and layers for a second token left out."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    import torch

    sizes = FAMILIES[family] if family == "gpt2" else {**SMALL, **FAMILIES[family]}
    config = transformers.AutoConfig.for_model(family, **sizes)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    names = {name for name, _ in model.named_parameters()}
    assert not any("mtp" in name for name in names)
    routing = sum(
        p.numel() for name, p in model.named_parameters() if name.endswith("correction_bias")
    )
    found = read_architecture(config.to_dict(), family)
    assert found.num_parameters == model.num_parameters() - routing


@pytest.mark.parametrize("family", ["gpt_neox", "starcoder2", "smollm3", "granite", "ministral"])
def test_the_formula_of_a_family_has_its_parameters(family):
    """However a plan accounts for it, by `transformer` or by `language_model`."""
    model = read_architecture({"model_type": family, **SMALL}, family)
    config = config_of(model)
    make = transformer_model if isinstance(config, TransformerConfig) else language_model
    assert make(config).num_parameters == model.num_parameters


def test_every_family_is_tried():
    """A reader without such a test could be wrong."""
    assert set(READERS) == {*FAMILIES, "gemma3"}  # which is gemma3_text inside of another


def test_a_language_model_inside_of_another():
    """Its own sizes, and what the whole says of the head."""
    inner = {**SMALL, "model_type": "gemma3_text", "head_dim": 32}
    found = read_architecture({"model_type": "gemma3", "text_config": inner}, "seeing")
    assert found == read_architecture(inner, "seeing")
    untied = {"model_type": "gemma3", "text_config": inner, "tie_word_embeddings": False}
    assert not read_architecture(untied, "seeing").tied


def test_files_folders_and_names(tmp_path):
    """A path, a folder, a published name in any letters, a preset, a family with other sizes."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **SMALL}))
    for name in (tmp_path, tmp_path / "config.json"):
        assert hf_config(f"hf:{name}").num_layers == 3
    assert hf_config(f"hf:{tmp_path},layers=5").num_layers == 5
    for name, preset in PUBLISHED.items():
        assert hf_config(f"hf:{name}") == hf_config(f"hf:{name.upper()}") == PRESETS[preset]
    assert hf_config("hf:Qwen/Qwen3-8B-Base") == hf_config("hf:qwen3-8b")
    assert hf_config("hf:google/gemma-3-4b-it") == PRESETS["gemma3-4b"]
    built = build_workload(WorkloadOptions(preset=f"hf:{tmp_path}", seq=16, batch=2))
    assert built.workload.num_stages == 5


def test_the_cache_of_the_hub_is_read(tmp_path, monkeypatch):
    """Where a file was downloaded before, it is found without a network."""
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", **SMALL}))
    seen = []

    def cached(name, file):
        seen.append((name, file))
        return str(path)

    monkeypatch.setattr(hub, "try_to_load_from_cache", cached)
    assert hf_config("hf:somebody/their-model").num_layers == 3
    assert seen == [("somebody/their-model", "config.json")]


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
        ({"model_type": "gpt2", "n_embd": 10, "n_head": 3}, "3 heads of a width of 10"),
    ],
)
def test_what_no_formula_has_is_refused(document, says):
    """With the model and the field."""
    with pytest.raises(SchedsimError) as caught:
        read_architecture(document, "odd")
    assert says in str(caught.value)
    assert str(caught.value).startswith("odd")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hf:nobody/nothing", "neither a file nor a model"),
        ("hf:", "neither a file nor a model"),
        ("hf:../..", "no config.json"),
        ("hf:qwen3-8b,layers=3", "those published"),
        ("hf:llama,batch=3", "'batch=3' is not understood"),
        ("hf:llama,layers=x", "'layers=x' is not understood"),
    ],
)
def test_odd_names_are_refused(text, says, tmp_path, monkeypatch):
    """One line, and a hint."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "config.json").write_text("[]")
    monkeypatch.chdir(tmp_path / "a" / "b")
    with pytest.raises(SchedsimError, match=says):
        hf_config(text)


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
    ],
)
def test_published_counts_of_models_that_are_no_preset(document, count):
    """What their model cards say, and transformers on the meta device."""
    assert read_architecture(document, "published").num_parameters == count


def test_a_folder_with_a_dot_in_its_name_keeps_it(tmp_path):
    folder = tmp_path / "qwen2.5-7b"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **SMALL}))
    assert hf_config(f"hf:{folder}").name == "qwen2.5-7b"
    (tmp_path / "mine-1.5.json").write_text(json.dumps({"model_type": "llama", **SMALL}))
    assert hf_config(f"hf:{tmp_path / 'mine-1.5.json'}").name == "mine-1.5"


def test_a_cluster_takes_the_same_names(tmp_path):
    """A file with other sizes, a published name; what is no language model is refused."""
    path = tmp_path / "made" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"model_type": "smollm3", **SMALL}))
    found = hf_architecture(f"hf:{path},layers=5")
    assert (found.name, found.num_layers, found.tied) == ("made", 5, True)
    assert hf_architecture("hf:Qwen/Qwen3-8B").name == "qwen3-8b"
    with pytest.raises(SchedsimError, match="no language model"):
        hf_architecture("hf:openai/whisper-large-v3")
    with pytest.raises(SchedsimError, match="neither a file nor a model that is known"):
        hf_architecture("hf:nobody/nothing")


def test_what_is_dropped_at_random_is_the_configurations():
    """GPT-2 says so by itself; GPT-NeoX and StarCoder2 only where they ask for it."""
    neox = {"model_type": "gpt_neox", **SMALL}
    assert not read_architecture(neox, "neox").dropout
    assert read_architecture({**neox, "hidden_dropout": 0.1}, "neox").dropout
    gpt2 = {"model_type": "gpt2", "vocab_size": 120, **FAMILIES["gpt2"]}
    assert read_architecture(gpt2, "gpt2").dropout
    assert not read_architecture({**gpt2, "resid_pdrop": 0.0}, "gpt2").dropout

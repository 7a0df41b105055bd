"""Decoders: language models of transformers with random weights, and peft's adapters in them."""

from __future__ import annotations

from typing import Any

import torch

from .subject import Subject, entry

BATCH, LENGTH, WORDS = 4, 48, 160
SIZES = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}


def language_batch() -> dict[str, Any]:
    """Words and the same as labels."""
    ids = torch.randint(3, WORDS, (BATCH, LENGTH))
    return {"input_ids": ids, "labels": ids.clone()}


def causal(kind: str, dtype: torch.dtype = torch.float32, **options: Any) -> Subject:
    """The model of transformers for the configuration class called ``kind + "Config"``."""
    import transformers

    config = getattr(transformers, f"{kind}Config")(**{**SIZES, "use_cache": False, **options})
    model = transformers.AutoModelForCausalLM.from_config(config).to(dtype)
    return Subject(model, keywords=language_batch())


@entry("decoder", "transformers")
def llama() -> Subject:
    return causal("Llama", attention_dropout=0.1)


@entry("decoder", "transformers")
def llama_bf16() -> Subject:
    return causal("Llama", torch.bfloat16)


@entry("decoder", "transformers")
def qwen2() -> Subject:
    return causal("Qwen2")


@entry("decoder", "transformers")
def qwen3() -> Subject:
    return causal("Qwen3", head_dim=8)


@entry("decoder", "transformers")
def qwen3_bf16() -> Subject:
    return causal("Qwen3", torch.bfloat16, head_dim=8)


@entry("decoder", "transformers")
def phi3() -> Subject:
    return causal("Phi3", resid_pdrop=0.1)


@entry("decoder", "transformers")
def phi3_bf16() -> Subject:
    return causal("Phi3", torch.bfloat16)


@entry("decoder", "transformers")
def gemma2() -> Subject:
    return causal("Gemma2", head_dim=8, sliding_window=16)


@entry("decoder", "transformers")
def gemma3() -> Subject:
    return causal("Gemma3Text", head_dim=8, sliding_window=16)


@entry("decoder", "transformers")
def gemma3_bf16() -> Subject:
    return causal("Gemma3Text", torch.bfloat16, head_dim=8, sliding_window=16)


@entry("decoder", "transformers")
def mistral() -> Subject:
    return causal("Mistral", sliding_window=16, head_dim=8)


@entry("decoder", "transformers")
def olmo2() -> Subject:
    return causal("Olmo2")


@entry("decoder", "transformers")
def stablelm() -> Subject:
    return causal("StableLm", hidden_dropout=0.1)


@entry("decoder", "transformers")
def gpt2() -> Subject:
    sizes = {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 64}
    return causal("GPT2", **sizes, bos_token_id=1, eos_token_id=2)


@entry("decoder", "transformers")
def gpt_neox() -> Subject:
    return causal("GPTNeoX", hidden_dropout=0.1)


@entry("decoder", "transformers")
def opt() -> Subject:
    return causal("OPT", ffn_dim=64, word_embed_proj_dim=32, layerdrop=0.0)


@entry("decoder", "transformers")
def bloom() -> Subject:
    return causal("Bloom", n_layer=4, n_head=4, hidden_dropout=0.1)


@entry("decoder", "transformers")
def falcon() -> Subject:
    return causal("Falcon", hidden_dropout=0.1)


@entry("decoder", "transformers")
def codegen() -> Subject:
    sizes = {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 64, "rotary_dim": 4}
    return causal("CodeGen", **sizes, n_ctx=64)


def _with_adapters(subject: Subject, targets: list[str], **options: Any) -> Subject:
    import peft

    config = peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.1, target_modules=targets, **options)
    subject.model = peft.get_peft_model(subject.model, config)
    return subject


@entry("decoder", "peft")
def llama_lora() -> Subject:
    return _with_adapters(causal("Llama"), ["q_proj", "v_proj"])


@entry("decoder", "peft")
def qwen3_lora_bf16() -> Subject:
    return _with_adapters(causal("Qwen3", torch.bfloat16, head_dim=8), ["q_proj", "down_proj"])


@entry("decoder", "peft")
def gpt2_dora() -> Subject:
    return _with_adapters(gpt2(), ["c_attn"], use_dora=True)

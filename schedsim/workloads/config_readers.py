"""Readers of ``config.json``: the sizes of a language model of each family.

Each reader takes the fields that change sizes, and refuses those that change what is computed and
have no formula.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..errors import SchedsimError
from .architecture import Architecture, AttentionSizes, ExpertSizes
from .config_fields import ConfigFields
from .config_windows import with_windows


def read_architecture(
    document: Mapping[str, Any], name: str, changes: Mapping[str, int] | None = None
) -> Architecture:
    """The sizes in a ``config.json``.

    Parameters
    ----------
    document
        Content of the file. For a model with vision or audio, its language model counts, and the
        name says so.
    name
        Name for messages and titles.
    changes
        Field -> value that replaces the one in the file.

    Raises
    ------
    SchedsimError
        The ``model_type`` is unknown, or a size is missing or not covered by a formula.

    Examples
    --------
    >>> small = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64,
    ...          "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 100}
    >>> read_architecture(small, "small").num_layers
    2
    """
    inner = document.get("text_config")
    if isinstance(inner, Mapping):
        # As in transformers, the whole model's setting of a tied head overrides the language
        # model's.
        outer = {
            field: document[field]
            for field in ("tie_word_embeddings", "quantization_config")
            if document.get(field) is not None
        }
        document = {"model_type": document.get("model_type"), **inner, **outer}
        name = f"{name}'s language model"
    kind = document.get("model_type")
    if not isinstance(kind, str) or kind not in READERS:
        raise SchedsimError(
            f"{name}: a model_type of {kind!r} has no formula",
            hint=f"one of {', '.join(READERS)}; schedsim plan MODEL.py:build takes any model",
        )
    fields = ConfigFields({**document, **(changes or {})}, name)
    model = with_windows(READERS[kind](fields), kind, fields)
    return replace(model, notes=fields.notes())


def _heads(sizes: ConfigFields, **more: bool) -> AttentionSizes:
    hidden, heads = sizes.number("hidden_size"), sizes.number("num_attention_heads")
    keys = sizes.number("num_key_value_heads", default=heads)
    width = sizes.number("head_dim", default=hidden // max(1, heads))
    if not heads or not keys or heads % keys or not width:
        raise SchedsimError(f"{sizes.name}: {heads} heads over {keys} key heads of {width} each")
    return AttentionSizes(heads, keys, width, **more)


def _model(
    sizes: ConfigFields,
    attention: AttentionSizes,
    *,
    tied: bool,
    experts: ExpertSizes | None = None,
    dense: int = 0,
    vocab: int | None = None,
) -> Architecture:
    if experts is not None and not 0 < experts.num_active <= experts.num_routed:
        raise SchedsimError(
            f"{sizes.name}: each token goes to {experts.num_active} of {experts.num_routed} experts"
        )
    if not sizes.number("num_hidden_layers"):
        raise SchedsimError(f"{sizes.name}: num_hidden_layers is 0")
    return Architecture(
        name=sizes.name,
        num_layers=sizes.number("num_hidden_layers"),
        hidden=sizes.number("hidden_size"),
        vocab=sizes.number("vocab_size", default=vocab),
        ffn_width=sizes.number("intermediate_size"),
        attention=attention,
        experts=experts,
        num_dense_layers=dense,
        tied=sizes.flag("tie_word_embeddings", tied),
        source="its config.json",
    )


def _biased_heads(sizes: ConfigFields, **more: bool) -> AttentionSizes:
    """Heads whose four products have biases if ``attention_bias`` says so."""
    bias = sizes.flag("attention_bias", False)
    return _heads(sizes, bias=bias, output_bias=bias, **more)


def _of_llama(sizes: ConfigFields) -> Architecture:
    sizes.refuse_mlp_bias()
    return _model(sizes, _biased_heads(sizes), tied=False)


def _of_tied_llama(sizes: ConfigFields) -> Architecture:
    return replace(_of_llama(sizes), tied=sizes.flag("tie_word_embeddings", True))


def _of_arcee(sizes: ConfigFields) -> Architecture:
    return replace(_of_llama(sizes), gated=False)


def _of_ernie(sizes: ConfigFields) -> Architecture:
    sizes.refuse_mlp_bias("use_bias")
    return _model(sizes, _heads(sizes), tied=True)


def _of_glm(sizes: ConfigFields) -> Architecture:
    return _model(sizes, _heads(sizes, bias=sizes.flag("attention_bias", True)), tied=False)


def _of_glm4(sizes: ConfigFields) -> Architecture:
    return replace(_of_glm(sizes), post_norm=True)


def _of_seed_oss(sizes: ConfigFields) -> Architecture:
    sizes.refuse_mlp_bias()
    bias, output = sizes.flag("attention_bias", True), sizes.flag("attention_out_bias", False)
    model = _model(sizes, _heads(sizes, bias=bias, output_bias=output), tied=False)
    return replace(model, dropout=sizes.drops("residual_dropout", 0.1))


def _of_olmo2(sizes: ConfigFields) -> Architecture:
    attention = _biased_heads(sizes, head_norm=True, joint_norm=True)
    return replace(_model(sizes, attention, tied=False), pre_norm=False, post_norm=True)


def _of_exaone4(sizes: ConfigFields) -> Architecture:
    model = _model(sizes, _heads(sizes, head_norm=True), tied=False)
    return replace(model, pre_norm=False, post_norm=True)


def _of_mistral(sizes: ConfigFields) -> Architecture:
    return _model(sizes, _heads(sizes), tied=False)


def _of_gpt_neox(sizes: ConfigFields) -> Architecture:
    """Attention and MLP may stand beside each other, which changes no size."""
    bias = sizes.flag("attention_bias", True)
    heads = _heads(sizes, bias=bias, output_bias=bias)
    # Every head has keys of its own, whatever other fields say.
    model = _model(sizes, replace(heads, num_kv_heads=heads.num_heads), tied=False)
    return _with_layer_norms(sizes, model, "hidden_dropout")


def _of_starcoder2(sizes: ConfigFields) -> Architecture:
    sizes.refuse("use_bias", bool, "an MLP without biases beside norms with shifts has no formula")
    model = _model(sizes, _heads(sizes, bias=True, output_bias=True), tied=True)
    return _with_layer_norms(sizes, model, "residual_dropout")


def _of_jais2(sizes: ConfigFields) -> Architecture:
    for field in ("attention_bias", "mlp_bias"):
        why = "products without biases beside norms with shifts have no formula"
        sizes.refuse(field, bool, why)
    model = _model(sizes, _heads(sizes, bias=True, output_bias=True), tied=False)
    return replace(model, gated=False, plain_norm=True)


def _with_layer_norms(sizes: ConfigFields, model: Architecture, dropout: str) -> Architecture:
    """`model` with two products in its MLPs, all with biases, and norms with shifts."""
    return replace(model, gated=False, plain_norm=True, dropout=sizes.drops(dropout))


def _of_qwen2(sizes: ConfigFields) -> Architecture:
    return _model(sizes, _heads(sizes, bias=True), tied=False)


def _of_qwen3(sizes: ConfigFields) -> Architecture:
    return _model(sizes, _biased_heads(sizes, head_norm=True), tied=False)


def _of_qwen3_moe(sizes: ConfigFields) -> Architecture:
    sizes.refuse("decoder_sparse_step", lambda value: value == 1, "experts are in every layer here")
    sizes.refuse("mlp_only_layers", lambda value: not value, "experts are in every layer here")
    experts = ExpertSizes(
        sizes.number("num_experts", "num_local_experts"),
        sizes.number("num_experts_per_tok"),
        sizes.number("moe_intermediate_size"),
    )
    return _model(sizes, _biased_heads(sizes, head_norm=True), tied=False, experts=experts)


def _experts(sizes: ConfigFields, number: str = "num_local_experts") -> ExpertSizes:
    """Experts in every layer, as wide as ``intermediate_size`` says."""
    return ExpertSizes(
        sizes.number(number),
        sizes.number("num_experts_per_tok"),
        sizes.number("intermediate_size"),
    )


def _shared_experts(sizes: ConfigFields, number: str, active: str, shared: str) -> ExpertSizes:
    """Routed experts beside shared ones, all as wide as ``moe_intermediate_size`` says."""
    width = sizes.number("moe_intermediate_size")
    return ExpertSizes(
        sizes.number(number),
        sizes.number(active),
        width,
        shared_width=width * sizes.number(shared, default=0),
    )


def _of_mixtral(sizes: ConfigFields) -> Architecture:
    return _model(sizes, _heads(sizes), tied=False, experts=_experts(sizes))


def _of_granite_moe(sizes: ConfigFields) -> Architecture:
    return _model(sizes, _biased_heads(sizes), tied=False, experts=_experts(sizes))


def _of_minimax_m2(sizes: ConfigFields) -> Architecture:
    attention = _heads(sizes, head_norm=True, joint_norm=True)
    return _model(sizes, attention, tied=False, experts=_experts(sizes))


def _of_olmoe(sizes: ConfigFields) -> Architecture:
    attention = _biased_heads(sizes, head_norm=True, joint_norm=True)
    return _model(sizes, attention, tied=False, experts=_experts(sizes, "num_experts"))


def _of_ernie_moe(sizes: ConfigFields) -> Architecture:
    sizes.refuse_mlp_bias("use_bias")
    last = sizes.number("num_hidden_layers") - 1
    why = "experts are in every layer from the first one on here"
    sizes.refuse("moe_layer_interval", lambda value: value == 1, why)
    sizes.refuse("moe_layer_end_index", lambda value: value == -1 or value >= last, why)
    experts = _shared_experts(sizes, "moe_num_experts", "moe_k", "moe_num_shared_experts")
    dense = sizes.number("moe_layer_start_index", default=0)
    return _model(sizes, _heads(sizes), tied=True, experts=experts, dense=dense)


def _of_gpt_oss(sizes: ConfigFields) -> Architecture:
    experts = ExpertSizes(
        sizes.number("num_local_experts"),
        sizes.number("num_experts_per_tok"),
        sizes.number("intermediate_size"),
        bias=True,
    )
    sizes.passed("experts_per_token")
    bias = sizes.flag("attention_bias", True)
    attention = _heads(sizes, bias=bias, output_bias=bias, sinks=True)
    return _model(sizes, attention, tied=False, experts=experts)


def _of_deepseek(sizes: ConfigFields) -> Architecture:
    sizes.refuse("attention_bias", lambda value: not value, "latents with biases have no formula")
    sizes.refuse_mlp_bias()
    # Every head has keys of its own, as wide as its queries.
    sizes.passed("head_dim", "num_key_value_heads", "qk_head_dim")
    plain, turned = sizes.number("qk_nope_head_dim"), sizes.number("qk_rope_head_dim")
    heads = sizes.number("num_attention_heads")
    attention = AttentionSizes(
        heads,
        heads,
        plain + turned,
        sizes.number("v_head_dim"),
        query_rank=sizes.number("q_lora_rank", default=0),
        kv_rank=sizes.number("kv_lora_rank"),
        rope_width=turned,
    )
    return _with_shared_experts(sizes, attention)


def _with_shared_experts(sizes: ConfigFields, attention: AttentionSizes) -> Architecture:
    """Dense layers, then layers with routed and shared experts, by DeepSeek's fields."""
    why = "experts are in every layer from the first one on here"
    sizes.refuse("moe_layer_freq", lambda value: value == 1, why)
    fields = "n_routed_experts", "num_experts_per_tok", "n_shared_experts"
    experts = _shared_experts(sizes, *fields)
    dense = sizes.number("first_k_dense_replace", default=0)
    return _model(sizes, attention, tied=False, experts=experts, dense=dense)


def _of_dots1(sizes: ConfigFields) -> Architecture:
    return _with_shared_experts(sizes, _biased_heads(sizes, head_norm=True))


def _of_glm4_moe(sizes: ConfigFields) -> Architecture:
    bias, norm = (sizes.flag(field, False) for field in ("attention_bias", "use_qk_norm"))
    return _with_shared_experts(sizes, _heads(sizes, bias=bias, head_norm=norm))


def _of_gemma(sizes: ConfigFields) -> Architecture:
    return _model(sizes, _biased_heads(sizes), tied=True)


def _of_gemma2(sizes: ConfigFields) -> Architecture:
    cap = sizes.get("final_logit_softcapping", 30.0) is not None
    return replace(_of_gemma(sizes), post_norm=True, logit_cap=cap)


def _of_gemma3(sizes: ConfigFields) -> Architecture:
    model = _model(sizes, _biased_heads(sizes, head_norm=True), tied=True, vocab=262208)
    cap = sizes.get("final_logit_softcapping") is not None
    return replace(model, post_norm=True, logit_cap=cap)


def _of_gpt2(sizes: ConfigFields) -> Architecture:
    why = "attention to another sequence has no formula"
    sizes.refuse("add_cross_attention", lambda value: not value, why)
    hidden = sizes.number("n_embd", "hidden_size")
    heads = sizes.number("n_head", "num_attention_heads")
    if not heads or hidden % heads:
        raise SchedsimError(f"{sizes.name}: {heads} heads of a width of {hidden}")
    return Architecture(
        name=sizes.name,
        num_layers=sizes.number("n_layer", "num_hidden_layers"),
        hidden=hidden,
        vocab=sizes.number("vocab_size"),
        ffn_width=sizes.number("n_inner", default=4 * hidden),
        attention=AttentionSizes(heads, heads, hidden // heads, bias=True, output_bias=True),
        gated=False,
        tied=sizes.flag("tie_word_embeddings", True),
        positions=sizes.number("n_positions"),
        plain_norm=True,
        dropout=sizes.drops("resid_pdrop", 0.1),
        source="its config.json",
    )


READERS: dict[str, Callable[[ConfigFields], Architecture]] = {
    "llama": _of_llama,
    "mistral": _of_mistral,
    "ministral": _of_mistral,
    "ministral3": _of_mistral,
    "arcee": _of_arcee,
    "granite": _of_llama,
    "internlm3": _of_llama,
    "iquestcoder": _of_llama,
    "smollm3": _of_tied_llama,
    "ernie4_5": _of_ernie,
    "exaone4": _of_exaone4,
    "glm": _of_glm,
    "glm4": _of_glm4,
    "gpt_neox": _of_gpt_neox,
    "hunyuan_v1_dense": _of_qwen3,
    "jais2": _of_jais2,
    "olmo2": _of_olmo2,
    "olmo3": _of_olmo2,
    "phi3": _of_llama,
    "qwen2": _of_qwen2,
    "qwen3": _of_qwen3,
    "seed_oss": _of_seed_oss,
    "starcoder2": _of_starcoder2,
    "qwen3_moe": _of_qwen3_moe,
    "mixtral": _of_mixtral,
    "granitemoe": _of_granite_moe,
    "minimax_m2": _of_minimax_m2,
    "olmoe": _of_olmoe,
    "gpt_oss": _of_gpt_oss,
    "deepseek_v2": _of_deepseek,
    "deepseek_v3": _of_deepseek,
    "kimi_k2": _of_deepseek,
    "dots1": _of_dots1,
    "ernie4_5_moe": _of_ernie_moe,
    "glm4_moe": _of_glm4_moe,
    "solar_open": _of_glm4_moe,
    "gemma": _of_gemma,
    "gemma2": _of_gemma2,
    "gemma3_text": _of_gemma3,
    "gemma3": _of_gemma3,
    "gpt2": _of_gpt2,
}
"""``model_type`` -> reader of its fields."""

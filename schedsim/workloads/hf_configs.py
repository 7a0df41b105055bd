"""``hf:`` configurations: the sizes in a model's ``config.json``, for a formula.

Nothing is downloaded and no model is built. After ``hf:`` stands one of three things: the path of a
``config.json`` or of its folder; the name of a published model, whose sizes are known or whose file
is in the cache of huggingface_hub; or a family of transformers, for its default sizes.
``,layers=4``
and the like change sizes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import SchedsimError, did_you_mean
from .architecture import Architecture, AttentionSizes, ExpertSizes
from .known_architectures import ARCHITECTURES
from .presets import PRESETS, ModelConfig, config_of

PREFIX = "hf:"

PUBLISHED = {
    "openai-community/gpt2": "gpt2",
    "openai-community/gpt2-medium": "gpt2-medium",
    "openai-community/gpt2-large": "gpt2-large",
    "openai-community/gpt2-xl": "gpt2-xl",
    "meta-llama/llama-2-7b-hf": "llama2-7b",
    "meta-llama/llama-2-13b-hf": "llama2-13b",
    "meta-llama/llama-2-70b-hf": "llama2-70b",
    "meta-llama/meta-llama-3-8b": "llama3-8b",
    "meta-llama/meta-llama-3-70b": "llama3-70b",
    "meta-llama/llama-3.1-8b": "llama3-8b",
    "meta-llama/llama-3.1-70b": "llama3-70b",
    "meta-llama/llama-3.1-405b": "llama3-405b",
    "meta-llama/llama-3.3-70b-instruct": "llama3-70b",
    "meta-llama/llama-3.2-1b": "llama3.2-1b",
    "meta-llama/llama-3.2-3b": "llama3.2-3b",
    "mistralai/mistral-7b-v0.1": "mistral-7b",
    "mistralai/mixtral-8x7b-v0.1": "mixtral-8x7b",
    "qwen/qwen3-0.6b": "qwen3-0.6b",
    "qwen/qwen3-1.7b": "qwen3-1.7b",
    "qwen/qwen3-4b": "qwen3-4b",
    "qwen/qwen3-8b": "qwen3-8b",
    "qwen/qwen3-14b": "qwen3-14b",
    "qwen/qwen3-32b": "qwen3-32b",
    "qwen/qwen3-30b-a3b": "qwen3-30b-a3b",
    "qwen/qwen3-235b-a22b": "qwen3-235b-a22b",
    "deepseek-ai/deepseek-v3": "deepseek-v3",
    "deepseek-ai/deepseek-r1": "deepseek-v3",
    "deepseek-ai/deepseek-v2-lite": "deepseek-v2-lite",
    "google/gemma-3-1b-pt": "gemma3-1b",
    "google/gemma-3-4b-pt": "gemma3-4b",
    "google/gemma-3-12b-pt": "gemma3-12b",
    "google/gemma-3-27b-pt": "gemma3-27b",
    "openai/gpt-oss-20b": "gpt-oss-20b",
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "openai/whisper-large-v3": "whisper-large-v3",
    "stabilityai/stable-diffusion-xl-base-1.0": "sdxl-unet",
}
"""Published name in lower case -> preset."""

_WORDS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "vocab": "vocab_size",
    "ffn": "intermediate_size",
}
_KINDS_OF_ENDINGS = ("-instruct", "-it", "-base", "-chat")


def hf_config(text: str) -> ModelConfig:
    """The configuration of the model that ``hf:...`` names.

    Raises
    ------
    SchedsimError
        The model is unknown, no formula covers its family, or its file lacks a size.

    Examples
    --------
    >>> hf_config("hf:Qwen/Qwen3-8B").num_layers
    36
    """
    name, _, rest = text.removeprefix(PREFIX).partition(",")
    options = _options(text, rest)
    known = _published(name)
    if known is not None:
        if options:
            raise SchedsimError(
                f"{text}: sizes of {name} are those published",
                hint="--layers, --seq and --batch can be changed",
            )
        return PRESETS[known]
    return config_of(read_architecture(_document(name, text), _called(name), options))


def hf_architecture(text: str) -> Architecture:
    """The sizes of the language model that ``hf:...`` names.

    Raises
    ------
    SchedsimError
        As of `hf_config`, or the model is no language model.

    Examples
    --------
    >>> hf_architecture("hf:mistralai/Mixtral-8x7B-v0.1").num_parameters
    46702792704
    """
    name, _, rest = text.removeprefix(PREFIX).partition(",")
    known = None if rest else _published(name)
    if known is None:
        return read_architecture(_document(name, text), _called(name), _options(text, rest))
    if known not in ARCHITECTURES:
        raise SchedsimError(f"{text} is no language model", hint="a cluster trains language models")
    return ARCHITECTURES[known]


def _published(name: str) -> str | None:
    if name in PRESETS:
        return name
    small = name.lower()
    for ending in ("", *_KINDS_OF_ENDINGS):
        if small.endswith(ending):
            base = small.removesuffix(ending)
            for candidate in (small, base, f"{base}-pt"):
                if candidate in PUBLISHED:
                    return PUBLISHED[candidate]
    return None


def _options(text: str, rest: str) -> dict[str, int]:
    found = {}
    for part in filter(None, rest.split(",")):
        key, _, value = part.partition("=")
        if key not in _WORDS or not value.isdecimal() or int(value) < 1:
            raise SchedsimError(
                f"{text}: {part!r} is not understood",
                hint=f"{', '.join(_WORDS)} take whole numbers; --batch, --seq, --dtype are options",
            )
        found[_WORDS[key]] = int(value)
    return found


def _called(name: str) -> str:
    """The last part of a name or a path; dots of a version number are kept."""
    path = Path(name)
    if path.name == "config.json" and path.parent.name:
        return path.parent.name
    return path.name.removesuffix(".json") or name


def _document(name: str, text: str) -> dict[str, Any]:
    path = Path(name)
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        cached = _cached(name)
        if cached is None:
            return _family(name, text)
        path = Path(cached)
    try:
        found = json.loads(path.read_text())
    except (ValueError, OSError) as error:
        raise SchedsimError(f"{path} is no config.json: {error}") from error
    if not isinstance(found, dict):
        raise SchedsimError(f"{path} is no config.json: it holds no object")
    return found


def _cached(name: str) -> str | None:
    """The path of the file of `name` in the cache of huggingface_hub; no network is used."""
    if name.count("/") != 1:
        return None
    try:
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError
    except ImportError:
        return None
    try:
        found = try_to_load_from_cache(name, "config.json")
    except HFValidationError:
        return None
    return found if isinstance(found, str) else None


def _family(name: str, text: str) -> dict[str, Any]:
    """The defaults of a family of transformers."""
    hint = "give the path of its config.json, hf:FOLDER/config.json"
    if name not in READERS:
        near = did_you_mean(name, [*PUBLISHED, *READERS], hint)
        raise SchedsimError(f"{text} is neither a file nor a model that is known", hint=near)
    try:
        from transformers import AutoConfig
    except ImportError as error:
        raise SchedsimError(
            f"{text}: the defaults of {name} are in transformers, which is not installed",
            hint=f"pip install transformers, or {hint}",
        ) from error
    found: dict[str, Any] = AutoConfig.for_model(name).to_dict()
    return found


class _ConfigFields:
    """Fields of a configuration, read strictly."""

    def __init__(self, fields: Mapping[str, Any], name: str) -> None:
        self.fields, self.name = fields, name

    def number(self, *names: str, default: int | None = None) -> int:
        for field in names:
            value = self.fields.get(field)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise SchedsimError(f"{self.name}: {field} {value!r} is not a whole number")
            return value
        if default is None:
            raise SchedsimError(f"{self.name}: {names[0]} is missing")
        return default

    def flag(self, field: str, default: bool) -> bool:
        value = self.fields.get(field)
        return default if value is None else bool(value)

    def refuse(self, field: str, fine: Callable[[Any], bool], why: str) -> None:
        value = self.fields.get(field)
        if value is not None and not fine(value):
            raise SchedsimError(f"{self.name}: {field} {value!r}: {why}")


def read_architecture(
    document: Mapping[str, Any], name: str, changes: Mapping[str, int] | None = None
) -> Architecture:
    """The sizes in a ``config.json``.

    Parameters
    ----------
    document
        Content of the file. For a model with vision or audio, the language model counts.
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
        outer = document.get("tie_word_embeddings")
        # As in transformers, the whole model's setting of a tied head overrides the language
        # model's.
        ties = {} if outer is None else {"tie_word_embeddings": outer}
        document = {"model_type": document.get("model_type"), **inner, **ties}
    kind = document.get("model_type")
    if not isinstance(kind, str) or kind not in READERS:
        raise SchedsimError(
            f"{name}: a model_type of {kind!r} has no formula",
            hint=f"one of {', '.join(READERS)}; schedsim plan MODEL.py:build takes any model",
        )
    return READERS[kind](_ConfigFields({**document, **(changes or {})}, name))


def _heads(sizes: _ConfigFields, **more: bool) -> AttentionSizes:
    hidden, heads = sizes.number("hidden_size"), sizes.number("num_attention_heads")
    keys = sizes.number("num_key_value_heads", default=heads)
    width = sizes.number("head_dim", default=hidden // max(1, heads))
    if not heads or not keys or heads % keys or not width:
        raise SchedsimError(f"{sizes.name}: {heads} heads over {keys} key heads of {width} each")
    return AttentionSizes(heads, keys, width, **more)


def _model(
    sizes: _ConfigFields,
    attention: AttentionSizes,
    *,
    tied: bool,
    experts: ExpertSizes | None = None,
    dense: int = 0,
    post_norm: bool = False,
    vocab: int | None = None,
) -> Architecture:
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
        post_norm=post_norm,
        source="its config.json",
    )


def _of_llama(sizes: _ConfigFields) -> Architecture:
    sizes.refuse("mlp_bias", lambda value: not value, "an MLP with biases has no formula")
    bias = sizes.flag("attention_bias", False)
    return _model(sizes, _heads(sizes, bias=bias, output_bias=bias), tied=False)


def _of_tied_llama(sizes: _ConfigFields) -> Architecture:
    return replace(_of_llama(sizes), tied=sizes.flag("tie_word_embeddings", True))


def _of_mistral(sizes: _ConfigFields) -> Architecture:
    return _model(sizes, _heads(sizes), tied=False)


def _of_gpt_neox(sizes: _ConfigFields) -> Architecture:
    """Attention and MLP may stand beside each other, which changes no size."""
    bias = sizes.flag("attention_bias", True)
    heads = _heads(sizes, bias=bias, output_bias=bias)
    # Every head has keys of its own, whatever other fields say.
    model = _model(sizes, replace(heads, num_kv_heads=heads.num_heads), tied=False)
    return _with_layer_norms(sizes, model, "hidden_dropout")


def _of_starcoder2(sizes: _ConfigFields) -> Architecture:
    sizes.refuse("use_bias", bool, "an MLP without biases beside norms with shifts has no formula")
    model = _model(sizes, _heads(sizes, bias=True, output_bias=True), tied=True)
    return _with_layer_norms(sizes, model, "residual_dropout")


def _with_layer_norms(sizes: _ConfigFields, model: Architecture, dropout: str) -> Architecture:
    """`model` with two products in its MLPs, all with biases, and norms with shifts."""
    drops = bool(sizes.fields.get(dropout))
    return replace(model, gated=False, plain_norm=True, dropout=drops)


def _of_qwen2(sizes: _ConfigFields) -> Architecture:
    return _model(sizes, _heads(sizes, bias=True), tied=False)


def _of_qwen3(sizes: _ConfigFields) -> Architecture:
    bias = sizes.flag("attention_bias", False)
    return _model(sizes, _heads(sizes, bias=bias, output_bias=bias, head_norm=True), tied=False)


def _of_qwen3_moe(sizes: _ConfigFields) -> Architecture:
    sizes.refuse("decoder_sparse_step", lambda value: value == 1, "experts are in every layer here")
    sizes.refuse("mlp_only_layers", lambda value: not value, "experts are in every layer here")
    experts = ExpertSizes(
        sizes.number("num_experts", "num_local_experts"),
        sizes.number("num_experts_per_tok"),
        sizes.number("moe_intermediate_size"),
    )
    bias = sizes.flag("attention_bias", False)
    attention = _heads(sizes, bias=bias, output_bias=bias, head_norm=True)
    return _model(sizes, attention, tied=False, experts=experts)


def _of_mixtral(sizes: _ConfigFields) -> Architecture:
    experts = ExpertSizes(
        sizes.number("num_local_experts"),
        sizes.number("num_experts_per_tok"),
        sizes.number("intermediate_size"),
    )
    return _model(sizes, _heads(sizes), tied=False, experts=experts)


def _of_gpt_oss(sizes: _ConfigFields) -> Architecture:
    experts = ExpertSizes(
        sizes.number("num_local_experts"),
        sizes.number("num_experts_per_tok"),
        sizes.number("intermediate_size"),
        bias=True,
    )
    bias = sizes.flag("attention_bias", True)
    attention = _heads(sizes, bias=bias, output_bias=bias, sinks=True)
    return _model(sizes, attention, tied=False, experts=experts)


def _of_deepseek(sizes: _ConfigFields) -> Architecture:
    sizes.refuse("attention_bias", lambda value: not value, "latents with biases have no formula")
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
    width = sizes.number("moe_intermediate_size")
    experts = ExpertSizes(
        sizes.number("n_routed_experts"),
        sizes.number("num_experts_per_tok"),
        width,
        shared_width=width * sizes.number("n_shared_experts", default=0),
    )
    dense = sizes.number("first_k_dense_replace", default=0)
    return _model(sizes, attention, tied=False, experts=experts, dense=dense)


def _of_gemma2(sizes: _ConfigFields) -> Architecture:
    return _model(sizes, _heads(sizes), tied=True, post_norm=True)


def _of_gemma3(sizes: _ConfigFields) -> Architecture:
    attention = _heads(sizes, head_norm=True)
    return _model(sizes, attention, tied=True, post_norm=True, vocab=262208)


def _of_gpt2(sizes: _ConfigFields) -> Architecture:
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
        dropout=bool(sizes.fields.get("resid_pdrop", 0.1)),
        source="its config.json",
    )


READERS: dict[str, Callable[[_ConfigFields], Architecture]] = {
    "llama": _of_llama,
    "mistral": _of_mistral,
    "ministral": _of_mistral,
    "ministral3": _of_mistral,
    "granite": _of_llama,
    "smollm3": _of_tied_llama,
    "gemma": _of_tied_llama,
    "gpt_neox": _of_gpt_neox,
    "starcoder2": _of_starcoder2,
    "phi3": _of_llama,
    "qwen2": _of_qwen2,
    "qwen3": _of_qwen3,
    "qwen3_moe": _of_qwen3_moe,
    "mixtral": _of_mixtral,
    "gpt_oss": _of_gpt_oss,
    "deepseek_v2": _of_deepseek,
    "deepseek_v3": _of_deepseek,
    "gemma2": _of_gemma2,
    "gemma3_text": _of_gemma3,
    "gemma3": _of_gemma3,
    "gpt2": _of_gpt2,
}
"""``model_type`` -> reader of its fields."""

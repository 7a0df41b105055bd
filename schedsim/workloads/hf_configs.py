"""``hf:`` configurations: the sizes in a model's ``config.json``, for a formula.

Nothing is downloaded and no model is built. After ``hf:`` stands one of three things: the path of a
``config.json`` or of its folder; the name of a published model, whose sizes are known or whose file
is in the cache of huggingface_hub; or a family of transformers, for its default sizes.
``,layers=4``
and the like change sizes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import SchedsimError, did_you_mean
from .architecture import Architecture
from .config_readers import READERS, read_architecture
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
        if _published(name) is not None:
            raise SchedsimError(f"{text}: sizes of {name} are those published", hint=hint)
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

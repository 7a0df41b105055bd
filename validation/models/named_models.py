"""Models by name, as in ``resnet50,batch=4``: configurations, and how options are read."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from schedsim.errors import SchedsimError, did_you_mean

from .gpt2 import build_gpt2
from .llama import build_llama
from .lstm import build_lstm
from .mixtral import build_mixtral
from .mlp import build_mlp
from .resnet import build_resnet
from .unet import build_unet
from .vit import build_vit
from .workload import Workload


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A named configuration: a builder with some of its arguments given.

    Attributes
    ----------
    num_parameters
        Of the configuration, shared ones once; a test counts them.
    """

    build: Callable[..., Workload]
    num_parameters: int
    options: Mapping[str, Any] = field(default_factory=dict)


MODELS: dict[str, ModelInfo] = {
    "mlp": ModelInfo(build_mlp, 20_992_000),
    "gpt2": ModelInfo(build_gpt2, 124_439_808),
    "gpt2-medium": ModelInfo(build_gpt2, 354_823_168, {"layers": 24, "hidden": 1024, "heads": 16}),
    "gpt2-large": ModelInfo(build_gpt2, 774_030_080, {"layers": 36, "hidden": 1280, "heads": 20}),
    "gpt2-xl": ModelInfo(build_gpt2, 1_557_611_200, {"layers": 48, "hidden": 1600, "heads": 25}),
    "llama2-7b": ModelInfo(build_llama, 6_738_415_616),
    "llama3-8b": ModelInfo(
        build_llama,
        8_030_261_248,
        {"kv_heads": 8, "ffn": 14336, "vocab": 128256, "theta": 500000.0},
    ),
    "llama3.2-1b": ModelInfo(
        build_llama,
        1_235_814_400,
        {
            "layers": 16,
            "hidden": 2048,
            "heads": 32,
            "kv_heads": 8,
            "ffn": 8192,
            "vocab": 128256,
            "theta": 500000.0,
            "tied": True,
        },
    ),
    "mixtral-8x7b": ModelInfo(build_mixtral, 46_702_792_704),
    "vit-b16": ModelInfo(build_vit, 86_567_656),
    "vit-l16": ModelInfo(build_vit, 304_326_632, {"layers": 24, "hidden": 1024, "heads": 16}),
    "resnet50": ModelInfo(build_resnet, 25_557_032, {"depth": 50}),
    "resnet101": ModelInfo(build_resnet, 44_549_160, {"depth": 101}),
    "resnet152": ModelInfo(build_resnet, 60_192_808, {"depth": 152}),
    "unet": ModelInfo(build_unet, 31_037_698),
    "lstm": ModelInfo(build_lstm, 5_261_322),
}
"""Name -> configuration. Every option of its builder can be changed."""


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def build_model(
    name: str,
    *,
    device: str | torch.device = "cpu",
    dtype: str = "fp32",
    seed: int = 0,
    **options: Any,
) -> Workload:
    """The model called `name`, with random weights and inputs, on `device`.

    Parameters
    ----------
    name
        A key of `MODELS`.
    device
        Where parameters and inputs are made; ``"meta"`` makes shapes alone.
    dtype
        Of weights and activations: fp32, bf16 or fp16.
    seed
        Of weights and inputs; the generator's state is put back.
    **options
        Arguments of the builder, such as ``batch`` or ``layers``.

    Raises
    ------
    SchedsimError
        No such model, or no such option of it.

    Examples
    --------
    >>> from schedsim.validation.models import build_model, num_parameters
    >>> num_parameters(build_model("gpt2-xl", device="meta").model)
    1557611200
    """
    if name not in MODELS:
        raise SchedsimError(
            f"unknown model {name!r}",
            hint=did_you_mean(name, MODELS, f"one of {', '.join(MODELS)}"),
        )
    if dtype not in DTYPES:
        raise SchedsimError(f"unknown dtype {dtype!r}", hint=f"one of {', '.join(DTYPES)}")
    info = MODELS[name]
    known = inspect.signature(info.build).parameters
    for option in options:  # by the name that the caller knows the model by
        if option not in known:
            raise SchedsimError(
                f"model {name!r} has no option {option!r}",
                hint=did_you_mean(option, known, f"it has {', '.join(known)}"),
            )
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(seed)
        built = info.build(**{**info.options, **options})
        return built if dtype == "fp32" else built.to(DTYPES[dtype])


def read_options(text: str) -> dict[str, Any]:
    """The options in ``batch=4,tied=false``: whole numbers, numbers, yes or no, or text.

    Examples
    --------
    >>> read_options("batch=4,dropout=0.1,tied=false")
    {'batch': 4, 'dropout': 0.1, 'tied': False}
    """
    options: dict[str, Any] = {}
    for item in filter(None, text.split(",")):
        name, equals, value = item.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise SchedsimError(f"{item!r} is not an option", hint="write NAME=VALUE: batch=4")
        options[name.strip()] = _value(value.strip())
    return options


def _value(text: str) -> Any:
    words = {"true": True, "yes": True, "false": False, "no": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    if "-" in text[1:] and all(part.isdigit() for part in text.split("-")):
        return tuple(int(part) for part in text.split("-"))  # depths=1-2-2-1
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text

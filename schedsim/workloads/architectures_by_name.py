"""Architectures by the name that users give: a preset, or a configuration of Hugging Face."""

from __future__ import annotations

from pathlib import Path

from ..errors import SchedsimError, did_you_mean
from .architecture import Architecture
from .hf_configs import hf_architecture
from .known_architectures import ARCHITECTURES


def get_architecture(name: str | Architecture) -> Architecture:
    """The model called `name`, or the one whose configuration ``hf:...`` names.

    A model is given back as it is.

    Raises
    ------
    SchedsimError
        There is none; the hint names the nearest, or all. Or the configuration has no formula.

    Examples
    --------
    >>> get_architecture("mixtral-8x7b").num_parameters
    46702792704
    """
    if isinstance(name, Architecture):
        return name
    if name in ARCHITECTURES:
        return ARCHITECTURES[name]
    if name.startswith("hf:"):
        return hf_architecture(name)
    if Path(name).exists():
        raise SchedsimError(
            f"--preset {name!r} is no language model", hint=f"of its config.json: hf:{name}"
        )
    every = f"one of {', '.join(ARCHITECTURES)}; or hf:PATH/config.json"
    raise SchedsimError(
        f"--preset {name!r} is no language model", hint=did_you_mean(name, ARCHITECTURES, every)
    )

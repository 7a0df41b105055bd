"""Checks of every configuration of a formula model before it is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from ..checks.checked_arguments import check_arguments
from ..checks.value_checks import shown
from ..errors import SchedsimError
from .devices import DTYPE_BYTES

MOST_LAYERS, MOST = 1_000_000, 10**12
"""Upper limits for layers and for other counts; a larger number is a typing error."""

ATTENTIONS = ("eager", "flash", "selective")
"""How attention keeps its scores: see `schedsim.workloads.transformer.TransformerConfig`."""


def check_config(config: Any, choices: Mapping[str, Sequence[Any]], counts: Sequence[str]) -> None:
    """Refuse a configuration with a wrong type, an unknown choice, or a count below 1.

    Parameters
    ----------
    config
        A dataclass. Its field ``dtype`` must be one of `DTYPE_BYTES`.
    choices
        Field -> allowed values.
    counts
        Fields that must be at least 1.

    Raises
    ------
    SchedsimError
        The message names the first wrong field, its value, and what it may be.
    """
    given = {field.name: getattr(config, field.name) for field in fields(config)}
    check_arguments(type(config), given)
    for name, allowed in {**choices, "dtype": tuple(DTYPE_BYTES)}.items():
        if given[name] not in allowed:
            raise SchedsimError(
                f"{name} {shown(given[name])} is unknown", hint=f"one of {_listed(allowed)}"
            )
    for name in counts:
        if given[name] < 1:
            option = name.removeprefix("num_").replace("_", "-")
            raise SchedsimError(
                f"--{option} {shown(given[name])} is not at least 1",
                hint=f"give a whole number of 1 or more to --{option}",
            )
        most = MOST_LAYERS if name == "num_layers" else MOST
        if given[name] > most:
            raise SchedsimError(
                f"{name} {shown(given[name])} is more than {most:,}", hint="no model is as large"
            )


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(str(value) for value in values)

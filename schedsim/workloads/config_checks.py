"""What every configuration of a formula model is held against before it is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from ..checks.checked_arguments import check_arguments
from ..checks.value_checks import shown
from ..errors import SchedsimError
from .devices import DTYPE_BYTES

MOST_LAYERS, MOST = 1_000_000, 10**12
"""Layers, and any other count: beyond these a formula is a slip of the pen."""

ATTENTIONS = ("eager", "flash", "selective")
"""How attention keeps its scores: see `schedsim.workloads.transformer.TransformerConfig`."""


def check_config(config: Any, choices: Mapping[str, Sequence[Any]], counts: Sequence[str]) -> None:
    """Refuse a configuration with a wrong type, an unknown choice, or nothing to count.

    Parameters
    ----------
    config
        A dataclass. Its field ``dtype`` is one of `DTYPE_BYTES` in any case.
    choices
        Field -> the values that it may have.
    counts
        Fields that are at least 1.

    Raises
    ------
    SchedsimError
        The first field that is wrong, its value, and what it may be.
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

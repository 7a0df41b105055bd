"""Places that hold the state of a generator of random numbers."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from .watched_places import ValuePlace, equal_through


def generator_place(path: str, value: Any) -> ValuePlace | None:
    """The state of a generator of Python or NumPy; ``None`` where `value` is no such generator."""
    if isinstance(value, random.Random):
        return ValuePlace(path, value.getstate, value.setstate, equal_through, value.getstate())
    if isinstance(value, np.random.RandomState):
        legacy: Any = value
        own = legacy.get_state()
        return ValuePlace(path, legacy.get_state, legacy.set_state, equal_through, own)
    if isinstance(value, np.random.Generator):
        bits: Any = value.bit_generator

        def write(state: Any) -> None:
            bits.state = state

        return ValuePlace(path, lambda: bits.state, write, equal_through, bits.state)
    return None


def torch_generator_place(path: str, generator: torch.Generator) -> ValuePlace:
    """The state of one of torch's generators."""

    def write(state: Any) -> None:
        generator.set_state(state)

    return ValuePlace(path, generator.get_state, write, torch.equal, generator.get_state())

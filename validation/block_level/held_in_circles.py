"""Tensors that Python objects hold which refer to each other, until Python's collector runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from schedsim.units import format_bytes

from ..measure import storage_bytes
from ..torch_private.storage_refs import storage_key
from .sizes import storage_keys


@dataclass
class HeldInCircles:
    """What a forward leaves in circles of Python objects, beside what it gives.

    Attributes
    ----------
    held_bytes
        Bytes of the tensors that nothing but the circle reaches.
    types
        Names of the types of the objects in the circle that are no tensors or plain containers.
    """

    held_bytes: int = 0
    types: tuple[str, ...] = ()

    @property
    def line(self) -> str | None:
        """What a user is told; ``None`` where nothing is held."""
        if not self.held_bytes:
            return None
        objects = " and ".join(self.types) or "Python objects"
        return (
            f"{objects} of a forward refer to each other and hold {format_bytes(self.held_bytes)} "
            "until Python's collector runs, in each forward and each recomputation of it: not "
            "counted; level='op' holds no such objects, and gc.collect() behind a step frees them"
        )

    def look(self, objects: list[Any], known: Any) -> None:
        """Set what `objects`, which only each other reach, hold of tensors that `known` has not."""
        keys = storage_keys(known)
        tensors = [found for found in objects if isinstance(found, Tensor)]
        self.held_bytes = storage_bytes([t for t in tensors if storage_key(t) not in keys])
        named = {type(found).__name__ for found in objects if not isinstance(found, _PLAIN)}
        self.types = tuple(sorted(named))


_PLAIN = (Tensor, dict, list, tuple, set)


@contextmanager
def watched_circles(known: Any) -> Iterator[HeldInCircles]:
    """Find what the block leaves in circles; Python's collector must be off.

    With the collector off, all that the block makes is in the youngest generation, so that only
    this generation is gone through. O(objects that the block makes).

    Parameters
    ----------
    known
        A tree of the tensors that count otherwise: the model's, and inputs.
    """
    found = HeldInCircles()
    gc.collect(0)
    yield found
    debug, before = gc.get_debug(), len(gc.garbage)
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect(0)
    finally:
        gc.set_debug(debug)
    found.look(gc.garbage[before:], known)
    del gc.garbage[before:]
    gc.collect(1)

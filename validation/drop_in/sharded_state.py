"""Bytes resident on a rank from before a step to after it, where FSDP2 shards the parameters."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from ..measure import storage_bytes
from ..torch_private import sharded_groups as private
from .drop_in_options import DropInOptions
from .held_state import HeldState


class ShardedState(HeldState):
    """Bytes of a rank's shares, and of gradients that wait for a step which reduces them.

    The tensors that parts read are gathered for a moment, and no shares.
    """

    def __init__(self, model: nn.Module, options: DropInOptions) -> None:
        super().__init__(options)
        # Dynamo keeps parts for good, and with them this: neither may keep the model.
        self._model = weakref.ref(model)
        self._states: tuple[weakref.ref[Any], ...] = ()

    def look(self) -> None:
        """Find the shares, between steps."""
        model = self._model()
        assert model is not None  # it runs
        found = list(dict.fromkeys(private.states(model)))
        self._states = tuple(map(weakref.ref, found))
        gathered = {id(t) for state in found for t in private.gathered(state)}
        shares = [t for state in found for t in private.shares(state)]
        whole = [t for t in (*model.parameters(), *model.buffers()) if id(t) not in gathered]
        super().see([*shares, *whole])

    def see(self, tensors: Iterable[Tensor]) -> None:
        """Nothing: what a part reads is no share."""

    @property
    def passing_bytes(self) -> int:
        """Bytes at present of gradients, shares and whole ones, and of what is gathered still."""
        whole = [
            tensor
            for state in self._found()
            for tensor in (*private.held_gradients(state), *private.gathered(state))
        ]
        shares = [t.grad for t in self._alive() if t.is_leaf and t.grad is not None]
        return storage_bytes([*whole, *shares])

    @property
    def reduces(self) -> bool:
        """Whether the coming backward leaves reduced gradients."""
        return all(map(private.reduces, self._found()))

    def _found(self) -> list[Any]:
        return [state for state in (ref() for ref in self._states) if state is not None]

"""Bytes resident on a rank from before a step to after it, where FSDP2 shards the parameters."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from ...measure import storage_bytes
from ...torch_private import sharded_groups as private
from ..drop_in_options import DropInOptions
from ..plans.gathered_calls import Mode
from .held_state import HeldState


class Passing(NamedTuple):
    """What a step finds besides shares: some of it is freed before the step ends.

    Attributes
    ----------
    num_bytes
        Bytes of all of it.
    mode
        What it is made of, and what the step does with gradients.
    """

    num_bytes: int
    mode: Mode


class ShardedState(HeldState):
    """Bytes of a rank's shares, and of gradients that wait for a step which reduces them.

    The tensors that parts read are gathered for a moment, and no shares.

    Parameters
    ----------
    models
        Gives the models that are there.
    """

    def __init__(self, models: Callable[[], Sequence[nn.Module]], options: DropInOptions) -> None:
        super().__init__(options)
        self._models = models
        self._states: tuple[weakref.ref[Any], ...] = ()

    def look(self) -> None:
        """Find the shares, between steps."""
        models = self._models()
        found = list(dict.fromkeys(state for model in models for state in private.states(model)))
        self._states = tuple(map(weakref.ref, found))
        for state in found:
            private.frees_at_once(state)
        gathered = {id(t) for state in found for t in private.gathered(state)}
        shares = [t for state in found for t in private.shares(state)]
        own = [t for model in models for t in (*model.parameters(), *model.buffers())]
        whole = [t for t in own if id(t) not in gathered]
        super().see([*shares, *whole])

    def see(self, tensors: Iterable[Tensor]) -> None:
        """Nothing: what a part reads is no share."""

    def see_whole(self, tensors: Iterable[Any]) -> None:
        """Count those of `tensors`, which a graph outside of the models reads, that stay there."""
        gathered = {id(t) for state in self.states for t in private.gathered(state)}
        super().see(t for t in tensors if isinstance(t, Tensor) and id(t) not in gathered)

    def passing(self) -> Passing:
        """What the coming step finds."""
        found = self.states
        gathered = [tensor for state in found for tensor in private.gathered(state)]
        waiting = [tensor for state in found for tensor in private.held_gradients(state)]
        shares = [t.grad for t in self._alive() if t.is_leaf and t.grad is not None]
        every = [*gathered, *waiting, *shares]
        mode = Mode(
            storage_bytes(gathered) > 0,
            storage_bytes(waiting) > 0,
            storage_bytes(shares) > 0,
            all(map(private.reduces, found)),
            all(map(private.reduces_over_replicas, found)),
            any(map(private.leaves_gathered, found)),
        )
        return Passing(storage_bytes(every), mode)

    def watch_releases(self, released: Callable[[int], None]) -> None:
        """Call ``released(bytes)`` when the coming step frees some of what it finds."""
        for state in self.states:
            for tensor in private.held_gradients(state):
                weakref.finalize(tensor, released, storage_bytes(tensor)).atexit = False
            private.watch_gathered(state, released)

    def unwatch(self) -> None:
        """End the watch on gathered parameters."""
        for state in self.states:
            private.unwatch_gathered(state)

    @property
    def states(self) -> list[Any]:
        """The states of sharded modules, as of the last look."""
        return [state for state in (ref() for ref in self._states) if state is not None]

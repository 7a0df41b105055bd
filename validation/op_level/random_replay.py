"""Random numbers of repeated runs: those of the first run again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class RandomReplay:
    """Generator states of the random ops of one step that run more than once.

    The first run of an op draws from the generator as it stands, and so advances it as the plain
    model does. A repeated run starts from the same state, and leaves the generator where it was.
    """

    def __init__(self, num_ops: int, device: str) -> None:
        self.states: list[torch.Tensor | None] = [None] * num_ops
        self._get: Callable[[], torch.Tensor]
        self._set: Callable[[torch.Tensor], None]
        if device == "cuda":
            self._get, self._set = torch.cuda.get_rng_state, torch.cuda.set_rng_state
        else:
            self._get, self._set = torch.get_rng_state, torch.set_rng_state

    def state(self) -> torch.Tensor:
        """The present state of the generator."""
        return self._get()

    def put(self, state: torch.Tensor) -> None:
        """Set the generator to `state`."""
        self._set(state)

    def first(self, slot: int, op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run `op`, and keep the state that it starts from."""
        self.states[slot] = self._get()
        return op(*args, **kwargs)

    def last(self, slot: int, op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run `op` as `again` does, and forget the state."""
        try:
            return self.again(slot, op, *args, **kwargs)
        finally:
            self.states[slot] = None

    def again(self, slot: int, op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run `op` from the state of its first run."""
        state = self.states[slot]
        assert state is not None
        present = self._get()
        self._set(state)
        try:
            return op(*args, **kwargs)
        finally:
            self._set(present)

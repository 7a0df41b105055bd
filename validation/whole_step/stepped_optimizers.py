"""Which optimizers have a state: those that have stepped, and those whose state was loaded.

One table for all that counts or tells of such states, whether a step is planned as a whole or by
the graphs of a loop.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from ..process_objects import objects_within
from ..torch_private.loaded_optimizers import when_given_state

_changes: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
_entries: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
_has_looked = False


def state_changes() -> list[tuple[Optimizer, int]]:
    """Optimizers in memory, and how often the state of each has changed.

    By a step, or as it was loaded; those that were never seen to change are none of them.
    """
    return list(_changes.items())


def stepped_optimizers() -> list[Optimizer]:
    """Optimizers in memory whose state has changed, or was found to be there."""
    return list(_changes)


def found_with_state(optimizer: Optimizer) -> None:
    """`optimizer` has a state from before this module was there, which no hook has told of."""
    _changes.setdefault(optimizer, 1)


def see_states() -> None:
    """Note states that have grown outside of a step, as by an estimate of the curvature.

    O(parameters with a state).
    """
    for optimizer in stepped_optimizers():
        its = list(optimizer.state.values())
        num_entries = sum(len(it) for it in its if isinstance(it, dict))
        if _entries.get(optimizer, num_entries) != num_entries:
            _changed(optimizer)
        _entries[optimizer] = num_entries


def look_for_states() -> None:
    """Find the optimizers that had a state before this module was there, as in a run that goes on.

    Notes
    -----
    O(objects of the process), once.
    """
    global _has_looked
    if _has_looked:
        return
    _has_looked = True
    for optimizer in objects_within(Optimizer):
        if vars(optimizer).get("state"):
            found_with_state(optimizer)


def _changed(optimizer: Optimizer, *_: Any) -> None:
    _changes[optimizer] = _changes.get(optimizer, 0) + 1


def _given(optimizer: Optimizer) -> None:
    # A copy is told of before all of it is there.
    if vars(optimizer).get("state") and "param_groups" in vars(optimizer):
        _changed(optimizer)


register_optimizer_step_post_hook(_changed)
when_given_state(_given)

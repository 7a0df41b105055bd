"""Optimizers that call a closure: what L-BFGS holds meanwhile, and by how much it will grow.

It calls the closure several times a step, adds two directions to its history each time, and holds
copies of parameters and gradients while it searches along one. What it holds stands in its local
variables until the step ends. So it is counted by what torch's code can hold at most.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

_LISTS = 2
"""Lists of the history: directions, and steps along them."""
_LAST = 2
"""The last direction, and the gradients for which it was made."""
_IN_STEP, _IN_SEARCH = 5, 9
"""Copies of all parameters that a step holds beside these, and one with a line search."""
_SCALARS_BYTES = 64
"""Bytes of the numbers that belong to an entry of the history."""


class _History(NamedTuple):
    """What is known of an optimizer: bytes of all parameters, of its history, and copies held."""

    copy_bytes: int
    num_entries: int
    most_entries: int
    num_held: int


def _known(optimizer: torch.optim.Optimizer) -> _History | None:
    """``None`` for other optimizers than L-BFGS, and before its first call of the closure."""
    if not isinstance(optimizer, torch.optim.LBFGS):
        return None
    group = optimizer.param_groups[0]
    most, state = int(group["history_size"]), optimizer.state.get(group["params"][0], {})
    return _History(
        sum(parameter.nbytes for parameter in group["params"]),
        min(most, state.get("n_iter", 0)),
        most,
        _IN_SEARCH if group["line_search_fn"] else _IN_STEP,
    )


def bytes_in_step(optimizer: torch.optim.Optimizer) -> int:
    """The most bytes of `optimizer` while its closure runs, its state included; 0 if unknown.

    Examples
    --------
    >>> weight = torch.nn.Parameter(torch.ones(500))
    >>> bytes_in_step(torch.optim.LBFGS([weight])), bytes_in_step(torch.optim.SGD([weight]))
    (0, 0)
    """
    known = _known(optimizer)
    if known is None or not known.num_entries:  # nothing before the first gradient
        return 0
    num_copies = _LISTS * known.num_entries + _LAST + known.num_held
    return known.copy_bytes * num_copies + _SCALARS_BYTES * known.num_entries


def growing_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes by which `optimizer` may still grow beyond what it holds, if it is L-BFGS.

    Examples
    --------
    >>> weight = torch.nn.Parameter(torch.ones(500))
    >>> growing_bytes(torch.optim.LBFGS([weight], history_size=3))
    26192
    """
    known = _known(optimizer)
    if known is None:
        return 0
    left = known.most_entries - known.num_entries
    num_copies = _LISTS * left + _LAST + known.num_held
    return known.copy_bytes * num_copies + _SCALARS_BYTES * left

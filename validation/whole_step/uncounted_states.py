"""States of optimizers that no plan of a whole step counts, as it was made without `optimizer`."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from schedsim.plans.budgets import is_share
from schedsim.units import format_bytes

from ..guards.plan_variants import PlainStepWarning
from ..measure.storage import storage_bytes
from ..user_warnings import warn_user
from .module_plans import ModulePlans
from .step_planning import PlannedStep

_stepped: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()
"""Optimizers, and how often they have stepped."""


def _note(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    _stepped[optimizer] = _stepped.get(optimizer, 0) + 1


register_optimizer_step_post_hook(_note)


def see_states(plans: ModulePlans, planned: PlannedStep) -> None:
    """A step by `planned` begins: say so once where states of optimizers take it over its budget.

    They are looked at when an optimizer has stepped 1, 2, 4, 8 times, and so on: some grow. A share
    as budget is one of what counts.
    """
    settings, budget, peak = plans.settings, plans.maker.budget_bytes, planned.plan.peak_bytes
    if plans.told_states or settings.optimizer is not None or budget is None or peak is None:
        return
    if isinstance(settings.budget, str) and is_share(settings.budget):
        return
    if not any(not num & (num - 1) for num in _stepped.values()):
        return
    own = {id(parameter) for parameter in plans.model.parameters()}
    found = [it for it in list(_stepped) if any(id(one) in own for one in it.state)]
    # What the loop has named may stand for them.
    more = storage_bytes([dict(it.state) for it in found]) - settings.extra_bytes
    if more <= 0 or peak + more <= budget:
        return
    plans.told_states = True
    names = ", ".join(dict.fromkeys(type(it).__name__ for it in found))
    warn_user(
        f"{format_bytes(more)} of the states of {names} are not counted, as optimizer= "
        f"was not given: with them a step takes up to {format_bytes(peak + more)}, over the budget "
        f'of {format_bytes(budget)}; optimizer="adamw", as it is called, or the optimizer itself '
        "counts them",
        PlainStepWarning,
    )

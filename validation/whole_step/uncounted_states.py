"""States of optimizers that no plan of a whole step counts, as it was made without `optimizer`."""

from __future__ import annotations

from schedsim.plans.budgets import is_share
from schedsim.units import format_bytes

from ..guards.plan_variants import PlainStepWarning
from ..measure.storage import storage_bytes
from ..user_warnings import warn_user
from .module_plans import ModulePlans
from .step_planning import PlannedStep
from .stepped_optimizers import look_for_states, state_changes, stepped_optimizers


def see_states(plans: ModulePlans, planned: PlannedStep) -> None:
    """A step by `planned` begins: say so once where states of optimizers take it over its budget.

    They are looked at when the state of an optimizer has changed 1, 2, 4, 8 times, and so on, by a
    step or as it was loaded: some grow. A share as budget is one of what counts.
    """
    settings, budget, peak = plans.settings, plans.maker.budget_bytes, planned.plan.peak_bytes
    if plans.told_states or settings.optimizer is not None or budget is None or peak is None:
        return
    if isinstance(settings.budget, str) and is_share(settings.budget):
        return
    look_for_states()
    if not any(not num & (num - 1) for _, num in state_changes()):
        return
    own = {id(parameter) for parameter in plans.model.parameters()}
    found = [it for it in stepped_optimizers() if any(id(one) in own for one in it.state)]
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

"""Gradients that a plan did not count: of earlier steps, and in the buckets of a wrapper."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from schedsim.errors import InfeasibleBudgetError

from ..guards.plan_variants import PlainStepWarning, ReplannedWarning
from ..ranks.buckets import averaging
from ..ranks.wrappers import refusing_passes
from ..user_warnings import warn_user
from .module_plans import ModulePlans
from .plan_maker import Coming


def see_wrapper(plans: ModulePlans) -> None:
    """Plan anew where this is the first step inside of a wrapper, or the first to accumulate.

    The wrapper is made after the first plan, and is not seen before it calls.
    """
    steps = [step for variants in plans.planned.values() for step in variants.steps]
    if plans.planned and not steps:
        return  # plain steps, which hold to no plan
    found = averaging(plans.maker.outer)
    if found is None:
        return
    settings = plans.settings
    # By blocks each gradient goes to its bucket as it is made; by ops, all at the end.
    in_buckets = bool(steps) and plans.last.captured.level == "block" and found.holds_gradients
    keeps = settings.keep_gradients or found.accumulates or in_buckets
    num_bytes = found.bytes_beside(gradients_resident=keeps)
    if num_bytes <= plans.maker.bucket_bytes and keeps == settings.keep_gradients:
        return
    if found.accumulates and not settings.keep_gradients:
        name = type(plans.model).__name__
        warn_user(
            f"{name} is planned anew: its gradients stay for later steps (no_sync)",
            ReplannedWarning,
        )
    if keeps != settings.keep_gradients:
        plans.maker.settings = replace(settings, keep_gradients=True)
        plans.maker.captured.clear()
    plans.is_told_kept = keeps
    plans.maker.bucket_bytes = max(num_bytes, plans.maker.bucket_bytes)
    plans.own_key = None
    plans.planned.clear()
    plans.maker.coming = Coming.PERHAPS  # the wrapper's forward is a step of all ranks


def see_gradients(
    plans: ModulePlans, key: Any, inputs: tuple[Any, ...], keywords: Mapping[str, Any]
) -> None:
    """Plan anew where gradients of an earlier step are still there, as in accumulation.

    The former plan lets gradients appear as they are made: those from before would come to it.
    """
    settings, name = plans.settings, type(plans.model).__name__
    if settings.keep_gradients or plans.counts_no_more or not settings.ranks.alone:
        return  # ranks are told by their wrapper
    if not plans.planned or all(p.grad is None for p in plans.model.parameters()):
        return
    if key not in plans.planned and plans.shapes == "raise":
        return  # whoever asks for its plan says that it has another shape
    stay = f"gradients of {name} stay for later steps"
    if plans.is_adopted:
        plans.counts_no_more = True
        line = "a plan that is applied holds its budget if it was made with keep_gradients=True"
        warn_user(f"{stay}: {line}", PlainStepWarning)
        return
    planned, captured, own_key = plans.planned, plans.maker.captured, plans.own_key
    plans.maker.settings = replace(settings, keep_gradients=True)
    plans.planned, plans.maker.captured, plans.own_key = OrderedDict(), OrderedDict(), None
    try:
        with refusing_passes(plans.maker.outer):
            plans.step_for(key, inputs, keywords)
    except BaseException as error:
        plans.planned, plans.maker.captured, plans.own_key = planned, captured, own_key
        plans.maker.settings = settings
        if not isinstance(error, InfeasibleBudgetError):
            raise
        plans.counts_no_more = True
        least = error.plan.min_feasible_bytes if error.plan is not None else None
        line = f", and no plan that counts them fits{f' below {least} bytes' if least else ''}"
        warn_user(
            f"{stay}{line}: steps that begin with them may exceed the budget; free them before "
            "the forward (zero_grad), or give more",
            PlainStepWarning,
        )
    else:
        warn_user(
            f"{name} is planned anew: its gradients stay for later steps "
            "(keep_gradients=True plans for that from the start)",
            ReplannedWarning,
        )

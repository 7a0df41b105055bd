"""A model that keeps its class and trains within a budget: rematerialize(..., in_place=True)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from schedsim.errors import SchedsimError

from ..ranks import ranks_of
from ..ranks.wrappers import inside
from ..torch_private.module_tables import call_instead, replacement_of
from ..torch_private.sharded_groups import frees_when_it_may, is_sharded, states
from .backend import SESSIONS
from .beside.copied_models import COPIES
from .budgeted_call import BudgetedCall
from .drop_in_options import DropInOptions
from .gathered_session import GatheredSession, refuse_waiting_gradients
from .local_session import LocalSession
from .rehearsal import rehearse, rehearse_together, with_open_sizes
from .session import Session


def in_place(
    model: nn.Module,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
    options: DropInOptions,
) -> nn.Module:
    """`model` itself, whose training steps stay within the budget from now on.

    Parameters
    ----------
    model
        Where DistributedDataParallel wraps it, the model inside gets the budget.
    inputs, keywords
        Inputs of one call, with which a first step is traced and planned; no trace of that step is
        left. Unless ``options.check`` is ``"never"``, a step with a made-up loss is compared with
        the plain one.

    Raises
    ------
    InfeasibleBudgetError
        The forward and backward of `model` alone do not fit.
    UnsupportedError
        The step by the schedules differs from the plain one.
    SchedsimError
        The model has a budget already, or is compiled in place.
    """
    wrapped, model = model, inside(model)
    before = replacement_of(model)
    if isinstance(before, BudgetedCall):
        raise SchedsimError("the model has a budget already", hint="schedsim.restore(model)")
    if before is not None:
        raise SchedsimError(
            "the model is compiled in place by model.compile(), which a budget would replace",
            hint="leave that line out, and give compile=True here",
        )
    ranks = ranks_of(model)
    gathers = ranks.bound or any(True for _ in states(model))
    if gathers:
        refuse_waiting_gradients(model)
        together = GatheredSession(options, ranks)
        together.takes(model)
        session: Session = together
    else:
        session = LocalSession(options)
        session.see(model)
    inputs, keywords = with_open_sizes(inputs, keywords, options)
    call = BudgetedCall(model, session, ranks)
    # A call of the module looks here first; copies and pickles of the module do not contain it.
    call_instead(model, call)
    try:
        if isinstance(session, GatheredSession):
            rehearse_together(model, session, inputs, keywords, ranks)
        else:
            rehearse(model, session, inputs, keywords)
            session.awaits_call = True
        COPIES.gets_budget(model)
    except BaseException:
        restore(model)
        raise
    return wrapped


def restore(model: nn.Module) -> nn.Module:
    """Remove the budget of `model`, and return it as it was before ``in_place=True``."""
    call = replacement_of(inside(model))
    if isinstance(call, BudgetedCall):
        call.session.is_over()
        COPIES.loses_budget(inside(model))
        call_instead(inside(model), None)
        frees_when_it_may(model)
    return model


def session_in(model: nn.Module) -> Session:
    """The session of a model with a budget, in place or, of a sharded one, by the backend.

    Raises
    ------
    SchedsimError
        The model has no budget.
    """
    call = replacement_of(inside(model))
    if isinstance(call, BudgetedCall):
        return call.session
    found = SESSIONS.for_model(model) if is_sharded(model) else None
    if found is None:
        raise SchedsimError(
            "the model has no budget of its own",
            hint="schedsim.rematerialize(model, inputs, budget, in_place=True)",
        )
    return found

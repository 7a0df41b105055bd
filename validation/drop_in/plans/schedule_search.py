"""Searches for a schedule of a part, and the refusal where none fits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from schedsim import Graph
from schedsim.api import try_plan
from schedsim.errors import InfeasibleBudgetError
from schedsim.plans.least_budget import LeastBudget
from schedsim.plans.plan import Plan
from schedsim.units import format_bytes

from ...compiled.any_order import back_in_the_trace, first_that_fits, orders
from ...ranks.members import has_ranks
from ..drop_in_options import DropInOptions
from .known_steps import KnownSteps
from .ordered_line import OrderedLine, least_budget

_LONGER_SEARCHES = (4.0, 12.0)
"""Factors of effort by which a schedule is searched again where the first search finds none."""
_FEW_RESULTS, _FEW_SHARE = 1024, 2**-8
"""Bytes, and a share, of a budget that is named: for results that a loop collects or holds between
its steps, as its losses and what they are made of."""
_GUESS_SHARE = 2**-6
"""Share of a budget that is named from which on a refusal says what of it is a guess."""
_QUICK_EFFORT = 0.03
"""Effort of a search that a step waits for, because its sizes came before their schedule."""


class ScheduleSearch:
    """Searches by the planner and the effort that the user chose.

    First runs of compiled groups may come in any order. Of several ranks they keep the trace's:
    buckets of gradients are averaged as they come, on all ranks in one order.
    """

    def __init__(self, options: DropInOptions) -> None:
        self._options = options

    def search(self, workload: Graph, budget_bytes: int, share: float) -> Plan:
        """A plan, by `share` of the effort."""
        options: dict[str, Any] = {}
        if self._options.planner == "auto":
            options["effort"] = max(0.2, share * self._options.effort)
            if self._options.time_limit_s is not None:
                options["time_limit_s"] = self._options.time_limit_s
        tried: list[dict[str, Any]] = [{}]
        if self._options.compile and not has_ranks():
            tried = orders(self._options.planner, options)

        def plan_in(order: dict[str, Any]) -> Plan:
            more = {**options, **order}
            plan = try_plan(workload, max(1, budget_bytes), self._options.planner, **more)
            return back_in_the_trace(workload, plan) if order else plan

        return first_that_fits(plan_in, tried)

    def search_long(self, workload: Graph, budget_bytes: int, share: float) -> Plan:
        """Search as `search` does, and longer before the step is refused without a proof."""
        for factor in (1.0, *_LONGER_SEARCHES):
            plan = self.search(workload, budget_bytes, factor * share)
            is_refuted = plan.least.refutes(budget_bytes)
            if plan.schedule is not None or is_refuted or self._options.planner != "auto":
                break
        return plan

    def search_quickly(self, workload: Graph, budget_bytes: int) -> Plan | None:
        """A plan that a step can wait for; ``None`` where the user chose another planner."""
        if self._options.planner != "auto":
            return None
        return try_plan(workload, max(1, budget_bytes), "auto", effort=_QUICK_EFFORT)


def infeasible(
    known: KnownSteps,
    name: str,
    plan: Plan,
    roomy_bytes: int | None = None,
    beside_bytes: int = 0,
) -> InfeasibleBudgetError:
    """The error for a step `name` for which `plan` has no schedule.

    Parameters
    ----------
    roomy_bytes
        Of a kind of step that was not measured: the least budget with room for what the loop may do
        with outputs, as far as one was found.
    beside_bytes
        Bytes that most loops hold beside the step: the budget that is named has room for them.
    """
    assert known.budget_bytes is not None
    if beside_bytes and plan.min_feasible_bytes is not None:
        found = plan.min_feasible_bytes + beside_bytes  # the floor is no higher without them
        plan = replace(plan, least=replace(plan.least, found_bytes=found))
    least = plan.min_feasible_bytes
    remedy = "give more, "
    if least is not None:
        remedy = _before_steps(known, least, roomy_bytes)
        if known.records:
            remedy = f"{named_budget(known, max(least, roomy_bytes or 0))}, "
    return InfeasibleBudgetError(
        f"{name} does not fit {format_bytes(known.budget_bytes)}"
        + (f": {plan.least.sentence(plan.binding_op or '')}" if least else ""),
        plan=plan,
        hint=remedy
        + ("a smaller optimizer state, or " if known.options.optimizer else "")
        + "a smaller batch"
        + beside_a_step(known),
    )


def _before_steps(known: KnownSteps, least: int, roomy_bytes: int | None) -> str:
    """The budget to name where it is not known what the loop takes besides.

    One that the next try refuses again, for outputs that the loop holds, for the states of its
    optimizer, or for gradients that stay until the next backward, is no remedy. What a loss takes
    is a guess, which may be far too much: so the budget without it is said, too, within which the
    first step runs and tells.
    """
    states, gradients = known.coming_bytes, known.gradient_bytes()

    def with_room(num_bytes: int) -> int:
        budget = _with_few(num_bytes) + known.growing_bytes + states + gradients
        return max(budget, known.optimizer_bytes() + _FEW_RESULTS)

    budget, bare = with_room(max(least, roomy_bytes or 0)), with_room(least)
    adam = f", {format_bytes(states)} of that for the states of Adam" if states else ""
    late = ", for gradients that it zeroes behind the next forward," if gradients else ""
    guess = ""
    if budget - bare > _GUESS_SHARE * budget:
        guess = (
            f"; {format_bytes(budget - bare)} of it are guessed for these outputs and the loss: "
            f"{bare} may do, which the first steps tell, and may exceed"
        )
    return (
        f"budget={budget} (with room for outputs that the loop holds{late} and for its "
        f"loss{adam}; what else it takes is not known yet{guess}), "
    )


def named_budget(known: KnownSteps, least: int) -> str:
    """The budget to name for a step that takes `least`, with room for states that are to come.

    It has room for steps of other kinds, too, which the next try would refuse, for the step of the
    optimizer and what the loop holds, which lines would say are over the budget, and for gradients
    that will be held through forwards as others are. Kinds that are still to come may need more,
    and so may steps of another model with a budget, which this one does not plan.
    """
    states = known.coming_bytes
    beside = known.growing_bytes + states + known.late_gradient_bytes()
    least = max(least, known.unmeasured_bytes(), known.optimizer_bytes() - beside)
    least = _with_few(max(least, known.uncounted_bytes()))
    adam = f" ({format_bytes(states)} of that for the states of Adam)" if states else ""
    return f"budget={least + beside}{adam} for the kinds of steps that have run"


def _with_few(num_bytes: int) -> int:
    """`num_bytes`, and room for a few more: a refusal for these would name hardly more."""
    return num_bytes + max(_FEW_RESULTS, int(_FEW_SHARE * num_bytes))


def beside_a_step(known: KnownSteps) -> str:
    """What the step holds and what the budget is a share of, for the end of a hint."""
    made = ""
    if known.made_bytes:
        made = (
            f"; {format_bytes(known.made_bytes)} are states that an optimizer has made: "
            'optimizer="adamw", or as it is called, counts them before the first step'
        )
    if known.growing_bytes:
        history = format_bytes(known.made_bytes)
        has = f"{history} are the history that LBFGS has made, and " if known.made_bytes else ""
        made = (
            f"; {has}{format_bytes(known.growing_bytes)} of the budget that is named are for what "
            "the history of LBFGS will grow by: a smaller history_size takes less"
        )
    if known.others_bytes:
        made += (
            f"; {format_bytes(known.others_bytes)} are kept for backwards of other models, or of a "
            "refused try whose error is held still, as a notebook holds the last (sys.last_value)"
        )
    if known.others_hold_bytes:
        made += (
            f"; {format_bytes(known.others_hold_bytes)} are parameters, gradients and optimizers' "
            "states of other models with a budget, or of a refused try that is in memory still"
        )
    if not known.is_share:
        return made
    return (
        f"{made}; {known.options.budget} is of the largest step so far: where larger ones come, as "
        "after a first small batch, say so by largest={0: SIZE}, or give bytes"
    )


def infeasible_line(
    line: OrderedLine, budget_bytes: int, plan: Plan, known: KnownSteps | None = None
) -> InfeasibleBudgetError:
    """The error for a step of several parts of which no division fits.

    Parameters
    ----------
    plan
        The plan of a part that was made last.
    known
        What is known of the steps of one process, for its hint.
    """
    least = least_budget(line, budget_bytes)
    named = f"budget={least}" if known is None else named_budget(known, least)
    return InfeasibleBudgetError(
        f"a step of {len(line.calls)} parts does not fit {format_bytes(budget_bytes)}: "
        f"the least found is {format_bytes(least)}",
        plan=replace(plan, budget_bytes=budget_bytes, least=LeastBudget(least)),
        hint=f"{named}, or a smaller batch" + ("" if known is None else beside_a_step(known)),
    )

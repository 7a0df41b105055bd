"""Schedules of steps that nothing was measured of yet: they leave room for whatever may come."""

from __future__ import annotations

from schedsim.plans.plan import Plan

from ..parts.part_sizes import Binding
from ..parts.planned_part import PlannedPart
from .known_steps import KnownSteps
from .schedule_search import ScheduleSearch, infeasible

_KEPT_SHARES = (0.25, 0.5)
"""Shares of what store-all keeps that a first schedule may keep, if it finds no plan for less."""
_GUESSED_OUTPUTS = 3
"""Bytes of an unmeasured loss, in sizes of the outputs: a copy, the loss's own, a gradient."""

_LOSS_BYTES = 8
"""Bytes of the least that a loss outside of the graphs is: a float32 number, and its gradient."""


class FirstSteps:
    """A frugal schedule for each part, until a whole step was measured.

    Attributes
    ----------
    roomy
        Refused part -> the least budget with room for what the loop may do with its outputs.
    """

    def __init__(self, known: KnownSteps, search: ScheduleSearch) -> None:
        self._known, self._search = known, search
        self._numbers: dict[int, int] = {}
        self.roomy: dict[int, int] = {}

    def clear(self) -> None:
        """Forget all schedules: what they were made for was not so."""
        self._numbers.clear()

    def forget(self, index: int) -> None:
        """Forget the schedule of part `index`."""
        self._numbers.pop(index, None)

    def number_for(self, index: int, binding: Binding, earlier_bytes: int) -> int:
        """A schedule that leaves room for whatever may come later in the step.

        Parameters
        ----------
        earlier_bytes
            Bytes that earlier calls of the step keep.

        Raises
        ------
        InfeasibleBudgetError
            None fits, whatever the loop does.
        """
        steps = self._known
        part = steps.parts[index]
        static = steps.resident_bytes + earlier_bytes
        guessed = _GUESSED_OUTPUTS * part.output_bytes(binding)
        known = self._numbers.get(index)
        if known is not None:
            if not (binding or earlier_bytes) or steps.budget_bytes is None:
                return known
            cost = part.cost(known, binding)
            between = cost.kept_bytes + part.input_bytes(binding) + part.given_bytes(binding)
            most = max(cost.forward_bytes, between + guessed, cost.backward_bytes)
            if static + most <= steps.budget_bytes:
                return known
        steps.measure(part, binding if known is not None else _measured_at(part, binding))
        told = part.sizes.limit(binding, steps.options.largest)  # a share is one of that peak
        budget = steps.budget_for(part.workload(static, guessed, told))
        store_all = part.store_all_cost(binding)
        room = budget - static - part.input_bytes(binding) - part.given_bytes(binding)
        # At last the plan may keep anything, as only a loss is known to follow. What that takes is
        # a guess, which refuses no budget: the first step measures it.
        rooms = [max(guessed, room - int(share * store_all.kept_bytes)) for share in _KEPT_SHARES]
        roomy = None
        for outside in (*rooms, guessed):
            plan = self._search.search(part.workload(static, outside, binding), budget, 0.3)
            if plan.schedule is not None:
                break
        else:
            # With a loss that keeps as much for its backward as the outputs have, and with all
            # outputs held until the next step has made its own.
            held = part.output_bytes(binding)
            roomiest = part.workload(static + held, guessed, binding, held)
            roomy = self._search.search(roomiest, budget, 0.3).min_feasible_bytes
            workload = part.workload(static, 0, binding)
            plan = self._search.search_long(workload, budget, 0.3)
            least = plan.min_feasible_bytes
            if plan.schedule is None and least and steps.is_share:
                # A share of what? Once the whole step was seen, it is known whether it fits. A
                # step with more calls than those seen, as one whose backward does not come while
                # its outputs are held, has a larger peak to take the share of.
                plan = self._search.search_long(workload, least, 0.3)
            if plan.schedule is None and part.guess_use():
                # Nor does what the loop may hold of the outputs refuse one: the step tells.
                workload = part.workload(static, 0, binding)
                plan = self._search.search_long(workload, budget, 0.3)
        if plan.schedule is None:
            beside = 0 if part.outputs.root_bytes else _LOSS_BYTES
            name = part.name + part.sizes.in_words(binding)
            if known is not None and earlier_bytes:
                name = f"{name}, beside earlier forwards of it whose backwards may come,"
                roomy = self._roomy_beside(index, plan, binding, earlier_bytes)
            self.roomy[index] = roomy or 0
            raise infeasible(steps, name, plan, roomy, beside)
        steps.plan = plan
        number = self._numbers[index] = part.add(plan.schedule)
        if binding:  # it may be the one that fits the longest sizes
            part.trust.expect(number, now=False)
        return number

    def _roomy_beside(
        self, index: int, plan: Plan, binding: Binding, earlier_bytes: int
    ) -> int | None:
        """A budget within which a call fits beside earlier ones, which then may keep more.

        They are taken for calls of the same part, that keep what `number_for` lets them.
        """
        steps, least = self._known, plan.min_feasible_bytes
        part = steps.parts[index]
        if least is None:
            return None
        # Of several backwards, each but the first finds gradients.
        beside = least - earlier_bytes + part.gradient_bytes
        kept = max(1, part.cost(self._numbers[index], binding).kept_bytes)
        most = part.store_all_cost(binding).kept_bytes
        for share in (*_KEPT_SHARES, 1.0):
            may_keep = int(share * most)
            budget = beside + int(earlier_bytes * max(1.0, may_keep / kept))
            room = budget - steps.resident_bytes - may_keep
            outside = room - part.input_bytes(binding) - part.given_bytes(binding)
            workload = part.workload(steps.resident_bytes, max(0, outside), binding)
            if self._search.search(workload, budget, 0.3).schedule is not None:
                break
        return budget


def _measured_at(part: PlannedPart, binding: Binding) -> Binding:
    """Sizes at which `part` was measured, from which `binding` can be evaluated well enough."""
    for known in part.sizes.measured:
        if all(mine <= its for mine, its in zip(binding, known, strict=True)):
            return known
    return binding

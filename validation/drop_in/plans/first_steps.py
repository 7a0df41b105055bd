"""Schedules of steps that nothing was measured of yet: they leave room for whatever may come."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from ..parts.part_line import PartCost
from ..parts.part_sizes import Binding
from ..parts.planned_part import PlannedPart
from ..records.step_record import Key
from .known_steps import KnownSteps
from .schedule_search import ScheduleSearch, infeasible

_KEPT_SHARES = (0.25, 0.5)
"""Shares of what store-all keeps that a first schedule may keep, if it finds no plan for less."""
_GUESSED_OUTPUTS = 3
"""Bytes of an unmeasured loss, in sizes of the outputs: a copy, the loss's own, a gradient."""

LOSS_BYTES = 8
"""Bytes of the least that a loss outside of the graphs is: a float32 number, and its gradient."""


class FirstSteps:
    """A frugal schedule for each part, until a whole step was measured."""

    def __init__(self, known: KnownSteps, search: ScheduleSearch) -> None:
        self._known, self._search = known, search
        self._numbers: dict[int, int] = {}
        self._together: set[int] = set()  # parts whose calls fit beside each other by these
        self._beside: dict[int, int] = {}  # what was resident as each was chosen, or found to fit

    def clear(self) -> None:
        """Forget all schedules: what they were made for was not so."""
        self._numbers.clear()
        self._together.clear()
        self._beside.clear()

    def forget(self, index: int) -> None:
        """Forget the schedule of part `index`."""
        self._numbers.pop(index, None)
        self._beside.pop(index, None)
        self._together.discard(index)

    def set(self, index: int, number: int) -> None:
        """Run part `index` by this schedule."""
        self._numbers[index] = number
        self._beside[index] = self._known.resident.now.resident_bytes + self._gradients_beside(
            index
        )

    def take(self, keys: Sequence[Key], costs: Sequence[PartCost]) -> None:
        """Run the calls by these schedules: those of one part, by the one that keeps least."""
        least: dict[int, PartCost] = {}
        for (index, _), cost in zip(keys, costs, strict=True):
            if index not in least or cost.kept_bytes < least[index].kept_bytes:
                least[index] = cost
        self._numbers |= {index: cost.number for index, cost in least.items()}
        self._together |= least.keys()
        resident = self._known.resident.now.resident_bytes
        self._beside |= {index: resident + self._gradients_beside(index) for index in least}

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
        static = steps.resident.now.resident_bytes + earlier_bytes
        others = self._gradients_beside(index)
        guessed = guessed_bytes(part, binding)
        known = self._numbers.get(index)
        if known is not None:
            is_alone = not earlier_bytes or index in self._together
            # As by the states of an optimizer, while steps of another kind were measured.
            beside = steps.resident.now.resident_bytes + others
            has_grown = beside > self._beside.setdefault(index, beside)
            if (is_alone and not binding and not has_grown) or steps.budget_bytes is None:
                return known
            cost = part.cost(known, binding)
            between = cost.kept_bytes + part.input_bytes(binding) + part.given_bytes(binding)
            most = max(cost.forward_bytes, between + guessed, cost.backward_bytes + others)
            if static + most <= steps.budget_bytes:
                self._beside[index] = max(beside, self._beside[index])
                return known
        if not (part.is_measured and steps.is_recorded()):  # which would end that record
            steps.measure(part, binding if known is not None else _measured_at(part, binding))
        told = part.sizes.limit(binding, steps.options.largest)  # a share is one of that peak
        budget = steps.budget_for(part.workload(static, guessed, told))
        store_all = part.store_all_cost(binding)
        room = budget - part.input_bytes(binding) - part.given_bytes(binding)
        roomy = None
        # Gradients of other parts may be there in its backward, and copies of its own beside the
        # next step, as of sharpness-aware minimisation; they refuse no budget.
        copies = 0 if others else part.gradient_bytes
        statics = dict.fromkeys((static + others + copies, static + others, static))
        tries = [
            (there, max(guessed, room - there - int(share * store_all.kept_bytes)))
            for there, share in product(statics, _KEPT_SHARES)
        ]
        # At last the plan may keep anything, as only a loss is known to follow. What that takes is
        # a guess, which refuses no budget either: the first step measures it.
        tries += [(there, guessed) for there in statics]
        for there, outside in dict.fromkeys(tries):
            plan = self._search.search(part.workload(there, outside, binding), budget, 0.3)
            if plan.schedule is not None:
                break
        else:
            # With all outputs held until the next step has made its own, and as the loss begins
            # without them, which keeps as much for its backward as the outputs have.
            held = part.output_bytes(binding)
            roomiest = part.workload(static + held, max(0, guessed - held), binding, held)
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
        if plan.schedule is None and part.buffers.hope():
            return self.number_for(index, binding, earlier_bytes)
        if plan.schedule is None:
            beside = 0 if part.outputs.root_bytes else LOSS_BYTES
            name = part.name + part.sizes.in_words(binding)
            raise infeasible(steps, name, plan, roomy, beside)
        steps.plan = plan
        number = self._numbers[index] = part.add(plan.schedule)
        self._beside[index] = steps.resident.now.resident_bytes + others
        if binding:  # it may be the one that fits the longest sizes
            part.trust.expect(number, now=False)
        return number

    def _gradients_beside(self, index: int) -> int:
        """Most bytes of gradients that later parts may have made before the backward of this one.

        Those that are there before the step are resident.
        """
        steps = self._known
        return max(0, steps.gradient_bytes() - steps.parts[index].gradient_bytes)


def guessed_bytes(part: PlannedPart, binding: Binding) -> int:
    """Bytes that a loss of the outputs of `part` is taken to need, before one was measured."""
    return _GUESSED_OUTPUTS * part.output_bytes(binding)


def _measured_at(part: PlannedPart, binding: Binding) -> Binding:
    """Sizes at which `part` was measured, from which `binding` can be evaluated well enough."""
    for known in part.sizes.measured:
        if all(mine <= its for mine, its in zip(binding, known, strict=True)):
            return known
    return binding

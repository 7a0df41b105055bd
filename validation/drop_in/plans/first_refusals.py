"""Refusals in the first forward, put off until all of its graphs are known.

Dynamo traces a graph behind a break when the code before it has run. A refusal of the first graph
alone would name a budget that the second one does not fit, and so on for each graph. So the forward
goes on by schedules of little memory. At its end its calls are a line that is divided as those of
later steps are: what no division fits is refused, and what is named is the least that one fits. So
it is where a loop calls a model several times before a backward: nobody knows how often.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from schedsim.errors import InfeasibleBudgetError
from schedsim.plans.least_budget import LeastBudget

from ...guards.plan_variants import PlainStepWarning
from ...user_warnings import warn_user
from ..parts.output_uses import gone_among
from ..parts.part_sizes import Binding
from ..parts.traced_part import TracedPart
from ..records.step_calls import StepCalls
from ..records.step_record import Key, StepRecord
from .first_steps import LOSS_BYTES, FirstSteps, guessed_bytes
from .known_steps import KnownSteps
from .line_steps import LineSteps
from .ordered_line import leanest, least_budget
from .schedule_search import infeasible
from .unmeasured_steps import UnmeasuredSteps, record_without_measurements, with_loss

_NO_LIMIT = 2**53


class FirstRefusals:
    """Lets a first forward go on to its other graphs, by schedules that take little memory.

    Parameters
    ----------
    parts
        Parts seen so far; more may come.
    unmeasured
        Kinds of steps for which a refusal names a budget, too.

    Attributes
    ----------
    is_of_several
        Whether a forward of several graphs was refused.
    """

    def __init__(
        self,
        known: KnownSteps,
        parts: Sequence[TracedPart],
        first: FirstSteps,
        lines: LineSteps,
        unmeasured: UnmeasuredSteps,
    ) -> None:
        self._known, self._parts, self._first, self._lines = known, parts, first, lines
        self._unmeasured = unmeasured
        self._refused: InfeasibleBudgetError | None = None
        self._is_said = False  # whether a line has told of a step that may not fit
        self._is_late = False  # whether what was refused came beside other graphs' calls
        self._gone: dict[int, frozenset[int]] = {}  # outputs that the loop has dropped, by part
        self._divided: set[tuple[Any, ...]] = set()  # kinds of steps whose calls fit together
        self.is_of_several = False

    @property
    def _is_broken(self) -> bool:
        """Whether Dynamo breaks the trace of a forward."""
        return any(one.is_followed for one in self._parts)

    def put_off(
        self, error: InfeasibleBudgetError, key: Key, binding: Binding, *, is_late: bool
    ) -> int:
        """The number of the schedule by which the refused call `key` runs all the same.

        Parameters
        ----------
        is_late
            Whether other calls of the step wait for their backward: their schedules may keep more
            than those by which all calls fit.

        Raises
        ------
        InfeasibleBudgetError
            No graph follows, and no other call is beside it; or steps are known already.
        """
        index, num_earlier = key
        part = self._parts[index]
        if error.min_feasible_bytes is None or (self._known.records and not is_late):
            raise error
        # The last graph of one function may be followed by those of the function that calls it.
        if not (num_earlier or is_late or self._is_broken):
            self._refused = None
            raise error
        # Frames of the forward that goes on would keep all that it makes.
        error.__traceback__ = error.__context__ = error.__cause__ = None
        self._refused = error
        self._is_late |= is_late and not num_earlier and not self._is_broken
        if self._known.plan is None:
            self._known.plan = error.plan
        number = self._lines.least_number(part, binding)
        part.trust.trust(number, binding)
        return number

    def tell(self, calls: StepCalls, *, more_may_come: bool = False, is_step: bool = True) -> None:
        """Refuse the forward of these `calls`, if a refusal was put off and nothing fits.

        Parameters
        ----------
        more_may_come
            Whether calls of the whole model may follow before a backward.
        is_step
            Whether they are of a step of the loop.

        Raises
        ------
        InfeasibleBudgetError
            It names a budget for all graphs that are known now.
        """
        error = self._refused
        is_late = self._is_late
        if error is None or (more_may_come and (is_late or self._num_forwards(calls.keys) > 1)):
            return
        self._refused, self._is_late = None, False
        if not calls.rows:
            return
        if len(calls.rows) == 1:
            raise error
        record = record_without_measurements(calls)
        for call in calls.rows:
            index, gone = call.key[0], gone_among(call.results)
            self._gone[index] = gone & self._gone.get(index, gone)
        if self._fits(record):
            if is_step and not self._is_said and (is_late or self._is_over(calls, record)):
                self._is_said = True
                warn_user(
                    f"the {len(calls.rows)} graphs of a step fit beside each other by schedules "
                    "that keep less than its first ones: this step may exceed the budget",
                    PlainStepWarning,
                )
            return
        if is_late:
            self._unmeasured.see(calls)
        else:
            self.is_of_several = True
        raise self.refusal(record, is_late=is_late)

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Let the steps within run, by schedules of little memory."""
        known = self._known
        before, known.budget_bytes = known.budget_bytes, _NO_LIMIT
        for index, binding in known.largest.items():
            self._first.set(index, self._lines.least_number(self._parts[index], binding))
        try:
            yield
        finally:
            known.budget_bytes = before

    def divide_anew(self, *, has_grown: bool) -> None:
        """Let first steps go on by schedules that fit beside each other, if their calls are known.

        Chosen by itself, the first graph of a step would take room that the others need.

        Parameters
        ----------
        has_grown
            Whether more is resident than before, as the states that an optimizer has made since.
        """
        if self._known.is_share:
            return
        seen = self._unmeasured.of_several()
        kinds = {(record.keys, record.halves, record.bindings) for record in seen}
        if not has_grown and kinds <= self._divided:
            return
        self._divided = kinds
        for record in seen:
            self._fits(record)

    def _fits(self, record: StepRecord) -> bool:
        """Whether a division of the budget fits; first steps run by it then.

        By one that takes little, because nobody knows what the code around the graphs takes: with
        a loss as it is guessed, if that fits, and without one else.
        """
        self._as_dropped(record)
        budget = self._known.budget_bytes
        assert budget is not None
        with self._hoping(record):
            line = self._lines.least_line(record)
            if line.divide(budget) is None:
                return False
            found = leanest(self._lines.least_line(self._unmeasured.with_guesses(record)))
            if line.peak_of(found.costs) > budget:
                found = leanest(line)
        self._first.take(record.keys, found.costs)
        return True

    def _is_over(self, calls: StepCalls, record: StepRecord) -> bool:
        """Whether the schedules by which these calls run do not fit beside each other."""
        assert self._known.budget_bytes is not None
        with self._hoping(record):
            costs = [self._parts[it.key[0]].cost(it.number, it.binding) for it in calls.rows]
            return self._lines.peak_of(record, costs) > self._known.budget_bytes

    @contextmanager
    def _hoping(self, record: StepRecord) -> Iterator[None]:
        """Take gradients that lack to be no zeros, in the parts of `record`."""
        with ExitStack() as hopes:
            for index in {index for index, _ in record.keys}:
                hopes.enter_context(self._parts[index].hoping())
            yield

    def refusal(self, record: StepRecord, *, is_late: bool = False) -> InfeasibleBudgetError:
        """The refusal of steps like `record`, whatever the loop does with their outputs."""
        known = self._known
        assert known.budget_bytes is not None
        assert known.plan is not None
        self._as_dropped(record)
        line = self._lines.least_line(with_loss(record, LOSS_BYTES))
        least = least_budget(line, known.budget_bytes)
        part, binding = self._parts[record.keys[-1][0]], record.bindings[-1]
        held, guessed = part.output_bytes(binding), guessed_bytes(part, binding)
        for index, _ in record.keys:
            self._parts[index].guess_held()
        # With all outputs held until the next step has made its own, before its loss begins.
        loss = max(0, guessed - held) + part.given_bytes(binding)
        line = self._lines.least_line(with_loss(record, loss), held)
        roomy = max(least, least_budget(line, known.budget_bytes))
        plan = replace(known.plan, budget_bytes=known.budget_bytes, least=LeastBudget(least))
        name = f"the first forward, of {len(record.keys)} graphs or more,"
        num_forwards = self._num_forwards(record.keys)
        if is_late:
            name = f"a step of {len(record.keys)} graphs or more before a backward"
        elif num_forwards > 1:
            name = f"a step that runs a graph {num_forwards} times or more before a backward"
        return infeasible(known, name, plan, roomy)

    def of_unmeasured(self) -> InfeasibleBudgetError | None:
        """The refusal of kinds of steps that have run and were not measured, if they do not fit.

        What the code around their graphs takes is guessed: it refuses none, and the budget that is
        named has room for it.
        """
        known = self._known
        if known.budget_bytes is None or known.plan is None:
            return None
        least = self._unmeasured.least_bytes(guesses=False)
        if not least:
            return None
        plan = replace(known.plan, budget_bytes=known.budget_bytes, least=LeastBudget(least))
        name = "a step that lies among those of other models"
        return infeasible(known, name, plan, self._unmeasured.least_bytes())

    def _num_forwards(self, keys: Sequence[Key]) -> int:
        """How often a graph runs; one where graphs break: layers of one class may share a graph."""
        return 1 if self._is_broken else 1 + max((earlier for _, earlier in keys), default=0)

    def _as_dropped(self, record: StepRecord) -> None:
        """Take the loop to drop outputs: what it may hold refuses no step before it is seen."""
        for index, _ in record.keys:
            self._parts[index].guess_use(self._gone.get(index, frozenset()))

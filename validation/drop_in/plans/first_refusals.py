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

from schedsim.errors import InfeasibleBudgetError
from schedsim.plans.least_budget import LeastBudget

from ..parts.output_uses import gone_among
from ..parts.part_sizes import Binding
from ..parts.traced_part import TracedPart
from ..records.outside_code import OutsideBytes
from ..records.step_calls import StepCalls
from ..records.step_record import NOTHING, Key, StepRecord
from .first_steps import LOSS_BYTES, FirstSteps, guessed_bytes
from .known_steps import KnownSteps
from .line_steps import LineSteps
from .ordered_line import least_budget
from .schedule_search import infeasible

_NO_LIMIT = 2**53


class FirstRefusals:
    """Lets a first forward go on to its other graphs, by schedules that take little memory.

    Parameters
    ----------
    parts
        Parts seen so far; more may come.

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
    ) -> None:
        self._known, self._parts, self._first, self._lines = known, parts, first, lines
        self._refused: InfeasibleBudgetError | None = None
        self._gone: dict[int, frozenset[int]] = {}  # outputs that the loop has dropped, by part
        self.is_of_several = False

    @property
    def _is_broken(self) -> bool:
        """Whether Dynamo breaks the trace of a forward."""
        return any(one.is_followed for one in self._parts)

    def put_off(self, error: InfeasibleBudgetError, key: Key, binding: Binding) -> int:
        """The number of the schedule by which the refused call `key` runs all the same.

        Raises
        ------
        InfeasibleBudgetError
            No graph and no other call follows, or steps are known already.
        """
        index, num_earlier = key
        part = self._parts[index]
        if self._known.records or error.min_feasible_bytes is None:
            raise error
        # The last graph of one function may be followed by those of the function that calls it.
        if not (num_earlier or self._is_broken):
            self._refused = None
            raise error
        # Frames of the forward that goes on would keep all that it makes.
        error.__traceback__ = error.__context__ = error.__cause__ = None
        self._refused = error
        if self._known.plan is None:
            self._known.plan = error.plan
        number = self._lines.least_number(part, binding)
        part.trust.trust(number, binding)
        return number

    def tell(self, calls: StepCalls, *, more_may_come: bool = False) -> None:
        """Refuse the forward of these `calls`, if a refusal was put off and nothing fits.

        Parameters
        ----------
        more_may_come
            Whether calls of the whole model may follow before a backward.

        Raises
        ------
        InfeasibleBudgetError
            It names a budget for all graphs that are known now.
        """
        error = self._refused
        if error is None or (more_may_come and self._num_forwards(calls.keys) > 1):
            return
        self._refused = None
        if not calls.rows:
            return
        if len(calls.rows) == 1:
            raise error
        record = _record_of(calls)
        for call in calls.rows:
            index, gone = call.key[0], gone_among(call.results)
            self._gone[index] = gone & self._gone.get(index, gone)
        if self._fits(record):
            return
        self.is_of_several = True
        raise self.refusal(record)

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

    def _fits(self, record: StepRecord) -> bool:
        """Whether a division of the budget fits; first steps run by it then."""
        self._as_dropped(record)
        assert self._known.budget_bytes is not None
        with ExitStack() as hopes:
            for index in {index for index, _ in record.keys}:
                hopes.enter_context(self._parts[index].hoping())
            found = self._lines.least_line(record).divide(self._known.budget_bytes)
        if found is None:
            return False
        self._first.take(record.keys, found.costs)
        return True

    def refusal(self, record: StepRecord) -> InfeasibleBudgetError:
        """The refusal of steps like `record`, whatever the loop does with their outputs."""
        known = self._known
        assert known.budget_bytes is not None
        assert known.plan is not None
        self._as_dropped(record)
        line = self._lines.least_line(_with_loss(record, LOSS_BYTES))
        least = least_budget(line, known.budget_bytes)
        part, binding = self._parts[record.keys[-1][0]], record.bindings[-1]
        held, guessed = part.output_bytes(binding), guessed_bytes(part, binding)
        for index, _ in record.keys:
            self._parts[index].guess_held()
        # With all outputs held until the next step has made its own.
        line = self._lines.least_line(_with_loss(record, guessed + part.given_bytes(binding)), held)
        roomy = max(least, least_budget(line, known.budget_bytes))
        plan = replace(known.plan, budget_bytes=known.budget_bytes, least=LeastBudget(least))
        name = f"the first forward, of {len(record.keys)} graphs or more,"
        num_forwards = self._num_forwards(record.keys)
        if num_forwards > 1:
            name = f"a step that runs a graph {num_forwards} times or more before a backward"
        return infeasible(known, name, plan, roomy)

    def _num_forwards(self, keys: Sequence[Key]) -> int:
        """How often a graph runs; one where graphs break: layers of one class may share a graph."""
        return 1 if self._is_broken else 1 + max((earlier for _, earlier in keys), default=0)

    def _as_dropped(self, record: StepRecord) -> None:
        """Take the loop to drop outputs: what it may hold refuses no step before it is seen."""
        for index, _ in record.keys:
            self._parts[index].guess_use(self._gone.get(index, frozenset()))


def _record_of(calls: StepCalls) -> StepRecord:
    """The record of a step with these `calls`, in which the code between them takes nothing."""
    nothing = (NOTHING,) * len(calls.rows)
    return StepRecord(
        calls.keys,
        tuple(call.binding for call in calls.rows),
        tuple(call.shared_bytes for call in calls.rows),
        nothing,
        nothing,
        trained=tuple(call.trained for call in calls.rows),
    )


def _with_loss(record: StepRecord, num_bytes: int) -> StepRecord:
    """`record`, in which the code between forward and backward takes so many bytes."""
    taken = OutsideBytes(num_bytes, num_bytes)
    return replace(record, after_forward=(*record.after_forward[:-1], taken))

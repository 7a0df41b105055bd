"""Refusals in the first forward, put off until all of its graphs are known.

Dynamo traces a graph behind a break when the code before it has run. A refusal of the first graph
alone would name a budget that the second one does not fit, and so on for each graph. So it is where
a loop calls a model several times before a backward: nobody knows how often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from schedsim.errors import InfeasibleBudgetError
from schedsim.plans.least_budget import LeastBudget

from ..parts.part_sizes import Binding
from ..parts.traced_part import TracedPart
from ..records.step_record import Key
from .first_steps import FirstSteps
from .known_steps import KnownSteps
from .schedule_search import ScheduleSearch, infeasible


@dataclass(frozen=True)
class _Refused:
    """A part that does not fit, by what was known when it ran.

    Attributes
    ----------
    least_bytes, roomy_bytes
        The budgets that it would have fitted: with a loss, and with what the loop may hold.
    resident_bytes
        What was resident then.
    gradient_bytes
        Of its parameters.
    kept_bytes
        What more it may keep, where it fits, than by the schedule by which it runs all the same.
    num_calls
        Number of calls of the part that await their backwards, with this one.
    """

    error: InfeasibleBudgetError
    least_bytes: int
    roomy_bytes: int
    resident_bytes: int
    gradient_bytes: int
    kept_bytes: int = 0
    num_calls: int = 1


class FirstRefusals:
    """Lets a first forward go on to its other graphs, by schedules that take least memory.

    Parameters
    ----------
    parts
        Parts seen so far; more may come.
    """

    def __init__(
        self,
        known: KnownSteps,
        parts: Sequence[TracedPart],
        first: FirstSteps,
        search: ScheduleSearch,
    ) -> None:
        self._known, self._parts, self._first, self._search = known, parts, first, search
        self._rows: list[_Refused] = []

    @property
    def _is_broken(self) -> bool:
        """Whether Dynamo breaks the trace of a forward."""
        return any(one.is_followed for one in self._parts)

    def put_off(
        self, error: InfeasibleBudgetError, key: Key, binding: Binding, earlier_bytes: int
    ) -> int:
        """The number of the schedule by which the refused call `key` runs all the same.

        Parameters
        ----------
        earlier_bytes
            Bytes that earlier calls of the step keep.

        Raises
        ------
        InfeasibleBudgetError
            No graph and no other call follows, or steps are known already.
        """
        (index, num_earlier), known = key, self._known
        part = self._parts[index]
        least = error.min_feasible_bytes
        if known.records or least is None:
            raise error
        roomy = self._first.roomy.get(index, least)
        gradients = part.gradient_bytes
        row = _Refused(error, least, max(least, roomy), known.resident_bytes, gradients)
        row = replace(row, num_calls=num_earlier + 1)
        # Frames of the forward that goes on would keep all that it makes.
        error.__traceback__ = error.__context__ = error.__cause__ = None
        self._rows.append(row)
        # The last graph of one function may be followed by those of the function that calls it.
        if num_earlier or self._is_broken:
            workload = part.workload(known.resident_bytes + earlier_bytes, 0, binding)
            plan = self._search.search_long(workload, least, 0.3)
            if plan.schedule is not None:
                number = part.add(plan.schedule)
                part.trust.trust(number, binding)
                most = part.store_all_cost(binding).kept_bytes
                more = max(0, most - part.cost(number, binding).kept_bytes)
                self._rows[-1] = replace(row, kept_bytes=more)
                return number
        self.tell()
        raise error

    def tell(self, *, more_may_come: bool = False) -> None:
        """Refuse what was put off, if anything was.

        Parameters
        ----------
        more_may_come
            Whether calls of the whole model may follow before a backward.

        Raises
        ------
        InfeasibleBudgetError
            It names a budget for all graphs that are known now.
        """
        rows, known = self._rows, self._known
        # Where graphs break, layers of one class are calls of one graph.
        num_calls = 1 if self._is_broken else max((row.num_calls for row in rows), default=0)
        if not rows or (more_may_come and num_calls > 1):
            return
        self._rows = []
        if len(rows) == 1 and rows[0].resident_bytes == known.resident_bytes:
            raise rows[0].error
        least = roomy = 0
        kept = sum(row.kept_bytes for row in rows)
        later = 0
        for row in reversed(rows):
            # Beside what is resident now, and the gradients that later graphs leave.
            more = known.resident_bytes - row.resident_bytes + later
            later += row.gradient_bytes
            kept -= row.kept_bytes
            least = max(least, row.least_bytes + more)
            # The budget of a repeated call has room for what the calls before it may keep.
            roomy = max(roomy, row.roomy_bytes + more + (kept if row.num_calls == 1 else 0))
        plan = replace(rows[-1].error.plan, least=LeastBudget(least))
        name = f"the first forward, of {len(rows)} graphs or more,"
        if num_calls > 1:
            name = f"a step that runs a graph {num_calls} times or more before a backward"
        raise infeasible(known, name, plan, roomy)

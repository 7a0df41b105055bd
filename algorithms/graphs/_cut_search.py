"""The search for cuts that prove much, and for schedules that do what the cuts ask for."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

import numpy as np

from schedsim.dataflow.graph import Graph
from schedsim.plans.effort import Effort
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import simulate

from ._cut_model import cut_milp
from ._cut_places import WIDELY, CutPlaces
from ._cut_rounds import CutRounds
from ._cut_table import Cut, CutTable, Ints, Order, cut_bound, fixed_order_bounds
from ._lazy_schedule import crowded_at, lazy_runs
from ._memory_need import END, MemoryNeed, largest_need
from ._milp import Answer, Milp, NodeWork, StartOf, milp_work, relaxation_work
from ._scaling import SolverTimes, solver_times
from ._spread_relaxations import LARGE_SHARE, SpreadRelaxations

# Most cuts that are looked at one by one, and most that are put into one MILP.
_MOST_SINGLE = 12
_MOST_WHOLE = 3
# Whole numbers at a single cut are looked for where its relaxation proves that share of the best.
_HOPEFUL = 0.96
# At several, where it proves that share: whole numbers add more there.
_HOPEFUL_SEVERAL = 0.93
_MOST_CUTS = 40
_FEW_CUTS = 5
# The share of the effort that relaxations may take.
_RELAXED_SHARE = 0.5
# The share of what is left that an MILP of several cuts may take: one that takes longer is not
# followed by an easier one.
_WHOLE_SHARE = 0.8
# MILPs of several cuts begin with those at which memory has a price in the last relaxation, of more
# than that share of the dearest, where these are so many.
_DEAR, _FEWEST_DEAR, _MOST_DEAR = 0.01, 2, 12
# A program of more non-zeros is not begun with; and how long the first node takes may be asked for
# that share of what is left.
_LARGEST_WHOLE, _LOOK_SHARE = 45_000, 0.1
# The work of the largest program of all cuts at once: its first node.
_MOST_AT_ONCE = 1.0
# In rounds, a share of the work is enough for the simplex method on programs of so many non-zeros.
_MOST_EXACT = 10_000
# To put a program together, and to carry over what the one before came to, takes so much work for
# each non-zero.
_BUILT = 2e-7
# Steps of the knapsacks that a core does in about a second.
_STEPS_PER_UNIT = 2e8


class CutSearch:
    """Bounds from cuts, and schedules read off them, as long as there is effort left.

    Attributes
    ----------
    extra_s
        The best bound on the time of repeated runs; infinite where nothing fits.
    how
        Where that bound comes from, in words.
    proved_at
        The ops of the cuts that prove it.
    best, best_s
        The fastest schedule seen that fits, and its makespan.
    suggested
        Every schedule looked at, those over budget too: fast schedules to start a repair from.
    need
        What is proven about the memory that every schedule needs.
    """

    def __init__(self, graph: Graph, budget_bytes: int, order: Order, effort: Effort) -> None:
        # A budget above every peak changes nothing, and need not fit in 64 bits.
        budget_bytes = min(budget_bytes, 2**53)
        self.graph, self.budget_bytes, self.effort = graph, budget_bytes, effort
        self._halted = threading.Event()
        self.table = CutTable(graph, budget_bytes, order)
        self.places = CutPlaces(graph, self.table)
        self.times: SolverTimes = solver_times(graph.arrays.op_time_s)
        self.extra_s, self.how = 0.0, "store-all time"
        self.proved_at: tuple[int, ...] = ()
        self.best: Schedule | None = None
        self.best_s = math.inf
        self.suggested: list[Schedule] = []
        self.need: MemoryNeed | None = None
        self.solved_nonzeros = 0  # of the last program
        self.was_whole = False  # whether the last MILP was solved in whole numbers
        # The cuts of the last relaxation, and where it came to.
        self.relaxed: tuple[list[int], Answer] | None = None
        self.bound_at: dict[int, float] = {}
        # The first run at or before which the last schedule is over budget, and the repeats there.
        self.worst: tuple[int, tuple[int, ...]] | None = None
        arrays = graph.arrays
        self.nonzeros = 3 * arrays.read_tensor.size + 4 * arrays.tensor_bytes.size

    @property
    def bound_s(self) -> float:
        """A bound on the makespan."""
        return self.graph.store_all_s + self.extra_s

    def halt(self) -> None:
        """Make the search begin no further step."""
        self._halted.set()

    def may(self, work: float) -> bool:
        """Whether there is a reason, and effort left, for a step that takes `work`."""
        return not self._halted.is_set() and not self.is_done() and self.effort.allows(work)

    def pairs_work(self, num_cuts: int) -> float:
        """The work of a look at all pairs of so many cuts."""
        return num_cuts**2 / 2 * self.nonzeros / _STEPS_PER_UNIT

    def is_done(self) -> bool:
        """Whether the best schedule meets the bound, or no schedule fits."""
        return self.best_s <= self.bound_s * (1 + 1e-10) or math.isinf(self.extra_s)

    def run(self) -> None:
        """Take all steps, each only while there is effort left; the first is always taken."""
        self.needs()
        self.knapsacks()
        self.solve_milps()

    def needs(self) -> None:
        """Go back from the ops that need most memory, and from the end: perhaps nothing fits."""
        self.need = largest_need(self.graph, self.budget_bytes, self.effort)
        if self.need.least_bytes > self.budget_bytes:
            op = self.need.op
            how = "the results at the end of the step"
            if op != END:
                how = f"what {self.graph.op_names[op]} needs before it"
            self.keep(math.inf, how, ())

    def solve_milps(self) -> None:
        """Solve what follows the knapsacks: relaxations, MILPs of single cuts, then of several."""
        self.relaxations()
        dear = self._dear()
        self.single_milps()
        self.several_cuts(dear)

    def keep(self, extra_s: float, how: str, ops: tuple[int, ...]) -> None:
        """Keep a bound if it is better than the known one; `ops` are the ops of its cuts."""
        if extra_s > self.extra_s:
            self.extra_s, self.proved_at = extra_s, ops
            self.how = f"no schedule fits: {how}" if math.isinf(extra_s) else how

    def knapsacks(self) -> None:
        """Solve the fractional knapsack at each op, the most promising op first."""
        costs = self.times.costs
        rough = fixed_order_bounds(self.graph, self.budget_bytes, costs)
        free = costs + 0.1 * costs.mean() if costs.any() else np.ones(costs.size)
        self.places.promise = fixed_order_bounds(self.graph, self.budget_bytes, free)
        self.effort.spend(128 * self.nonzeros / _STEPS_PER_UNIT)
        best = 0.0
        for place, op in enumerate(np.argsort(-rough, kind="stable").tolist()):
            if rough[op] <= 0:
                break
            # In any order of first runs, a cut is crossed by no more than in the fixed order.
            if place >= _MOST_SINGLE and (rough[op] <= best or place > 200 or not self.may(0.0)):
                break
            self.effort.spend(self.nonzeros / _STEPS_PER_UNIT)
            found = cut_bound(self.table, self.places.cut(op), self.times.costs)
            self.bound_at[op] = found
            best = max(best, found)
            extra_s = math.inf if math.isinf(found) else self.times.bound_s(found)
            self.keep(extra_s, f"knapsack at {self.graph.op_names[op]}", (op,))
        # Where all tensors to evict seem to cost nothing, the knapsack is blind: a tensor that
        # takes no time itself may need others that do.
        worst = np.argsort(-self.places.promise, kind="stable")[:_MOST_WHOLE]
        for op in worst[self.places.promise[worst] > 0].tolist():
            self.bound_at.setdefault(op, 0.0)

    def relaxations(self) -> None:
        """Solve relaxations of more and more cuts, spread over the step, then of better cuts."""
        relaxed_share = _RELAXED_SHARE
        if self.effort.counted and milp_work(2 * self.nonzeros) > 0.5 * self.effort.left:
            relaxed_share = LARGE_SHARE  # whole numbers at two cuts would take too much
        until = SpreadRelaxations(self).run(relaxed_share)
        CutRounds(self).run(until)

    def _dear(self) -> list[int]:
        """The cuts at which memory has a price in the last relaxation, the dearest first."""
        prices = self.places.prices
        least = _DEAR * max(prices.values(), default=0.0)
        dear = [op for op, price in prices.items() if price > least]
        return sorted(dear, key=lambda op: (-prices[op], op))

    def cuts_at(self, ops: list[int]) -> list[Cut]:
        """The cuts at `ops`, by the order of their first runs."""
        return [self.places.cut(op) for op in sorted(ops)]

    def proved_small(self, most_nonzeros: int) -> tuple[int, ...]:
        """`proved_at`, without the cuts of least price as long as their program is larger."""
        ops = sorted(self.proved_at, key=lambda op: (-self.places.prices.get(op, 0.0), op))
        while len(ops) > 1 and self.places.likely_nonzeros(ops) > most_nonzeros:
            ops.pop()
        return tuple(sorted(ops))

    def single_milps(self) -> None:
        """Solve MILPs of single cuts, with what recomputation reads: relaxed, then whole."""
        relaxed: dict[int, float] = {}
        enough = 0.85 * self.effort.left
        for op in sorted(self.bound_at, key=lambda op: -self.bound_at[op])[:_MOST_SINGLE]:
            if not self.may(relaxation_work(self.nonzeros)):
                break
            if relaxed and not self.effort.allows(enough):
                break
            relaxed[op] = self.solve([self.places.cut(op)], 0.3, integral=False) or 0.0
        least = _HOPEFUL * self.extra_s
        for op in sorted(relaxed, key=lambda op: -relaxed[op])[:_MOST_WHOLE]:
            if self.times.bound_s(relaxed[op]) >= least and self.may(0.2 * enough):
                self.bound_at[op] = self.solve([self.places.cut(op)], 0.5, integral=True) or 0.0

    def several_cuts(self, dear: Sequence[int] = ()) -> None:
        """Solve MILPs of several cuts, adding one where the suggestion is most over budget.

        They begin with the cuts `dear`, the dearest first, or with the best one. Where a suggestion
        is over budget beside a repeated run, the cuts on both sides of the run are added, and the
        MILP looks at memory beside that run. The search chooses; the bound holds for any choice.
        """
        if not self.bound_at:
            return
        chosen = self._affordable(dear[:_MOST_DEAR])
        solved = not chosen  # whether the MILP of those chosen is solved
        chosen = chosen or [max(self.bound_at, key=lambda op: self.bound_at[op])]
        beside: set[tuple[int, int]] = set()  # (op of the cut behind, op that is repeated)
        spread = self.places.spread(_FEW_CUTS)
        self.worst = None
        while len(chosen) < _MOST_CUTS and not self.is_done():
            before = (len(chosen), len(beside)) if solved else None
            if self.worst is not None:
                op, repeated = self.worst
                if self.table.order == "free":
                    repeated = ()
                self.places.choose(chosen, [op - 1, op] if repeated else [op])
                if op in chosen and op - 1 in chosen:
                    beside.update((op, again) for again in repeated)
            if before == (len(chosen), len(beside)):
                self._choose_promising(chosen)
            while spread and before == (len(chosen), len(beside)):
                self.places.choose(chosen, [spread.pop(0)])
            if before == (len(chosen), len(beside)):
                return
            solved = True
            chosen.sort()
            if not self.may(relaxation_work(self.nonzeros * len(chosen))):
                return
            answer = self.solve(
                [self.places.cut(op) for op in chosen],
                _WHOLE_SHARE,
                integral=True,
                beside=[(chosen.index(op) - 1, again) for op, again in sorted(beside)],
            )
            if answer is None or not self.was_whole:
                return

    def _affordable(self, dear: Sequence[int]) -> list[int]:
        """The dearest cuts, so many that their MILP may be solved; none where these are too few.

        How long the first node takes is known from the relaxation, which is solved for this.
        """
        chosen: list[int] = []
        self.places.choose(chosen, list(dear))
        while len(chosen) >= _FEWEST_DEAR:
            if not self.may(relaxation_work(self.nonzeros * len(chosen))):
                return []
            milp, _ = cut_milp(self.table, self.cuts_at(chosen), self.times.costs)
            if milp.num_nonzeros <= _LARGEST_WHOLE:
                with self.effort.part(_LOOK_SHARE) as part:
                    answer = milp.solve(part, integral=False, halted=self._halted.is_set)
                proven_s = self.times.bound_s(answer.bound)
                if proven_s < _HOPEFUL_SEVERAL * self.extra_s:
                    return []
                if self._may_be_whole(milp, answer):
                    return chosen
            del chosen[(len(chosen) + 1) // 2 :]
        return []

    def _may_be_whole(self, milp: Milp, relaxed: Answer) -> bool:
        """Whether there is effort for the first node of the MILP with that relaxation."""
        if relaxed.pivots is None or not self.may(0.0):
            return False
        first = NodeWork.by_pivots(milp.num_nonzeros, relaxed.pivots).first
        return not self.effort.counted or first <= self.effort.left

    def _choose_promising(self, chosen: list[int]) -> None:
        """Add all cuts at which something must be evicted, if their MILP is not too expensive.

        On small graphs they prove more than a few. Beyond these the solver would be at work for
        long after an interrupt, or after the last second.
        """
        every = list(chosen)
        self.places.choose(every, self.places.spread(_MOST_CUTS, share=WIDELY))
        work = milp_work(int(self.places.likely_nonzeros(every)))
        if work <= _MOST_AT_ONCE and self.may(work / _WHOLE_SHARE):
            chosen[:] = every

    def solve(
        self,
        cuts: list[Cut],
        share: float,
        *,
        integral: bool,
        beside: Sequence[tuple[int, int]] = (),
    ) -> float | None:
        """The cost that an MILP proves, in solver units; its schedule is looked at, too.

        The MILP may take `share` of the effort left. ``None`` where a clock ends the search before
        HiGHS would solve the first relaxation: until then HiGHS looks at no clock.
        """
        milp, alive = cut_milp(
            self.table,
            cuts,
            self.times.costs,
            beside=beside,
            doubling=self.places.doubling and not integral,
        )
        if not self.effort.counted and not self.effort.allows(relaxation_work(milp.num_nonzeros)):
            return None
        with self.effort.part(share) as part:
            answer = milp.solve(part, integral=False, halted=self._halted.is_set)
        if answer.place is not None:
            self.relaxed = [cut.op for cut in cuts], answer
        bound = self._take_in(cuts, milp, alive, answer, integral=False)
        self.was_whole = integral and not answer.infeasible and self._may_be_whole(milp, answer)
        if not self.was_whole:
            return bound
        if len(cuts) > 1:
            known = self.extra_s / self.times.unit_s * (1 - 1e-9)
            milp, alive = cut_milp(
                self.table, cuts, self.times.costs, beside=beside, at_least=known
            )
        with self.effort.part(share) as part:
            answer = milp.solve(part, pivots=answer.pivots)
        return max(bound, self._take_in(cuts, milp, alive, answer, integral=True))

    def relax(
        self, ops: list[int], longer: list[tuple[int, int]], share: float, start: StartOf | None
    ) -> Answer | None:
        """The relaxation of cuts at `ops`, ascending, with intervals between those `longer` pairs.

        It may take `share` of the effort left; the first-order method begins at `start`. ``None``
        as of `solve`.
        """
        cuts = [self.places.cut(op) for op in ops]
        milp, alive = cut_milp(self.table, cuts, self.times.costs, longer=longer)
        self.effort.spend(_BUILT * milp.num_nonzeros)
        if not self.effort.counted and not self.effort.allows(relaxation_work(milp.num_nonzeros)):
            return None
        with self.effort.part(share) as part:
            answer = milp.solve(
                part,
                integral=False,
                halted=self._halted.is_set,
                start=start,
                most_of_simplex=_MOST_EXACT,
            )
        self._take_in(cuts, milp, alive, answer, integral=False)
        return answer

    def _take_in(
        self, cuts: list[Cut], milp: Milp, alive: list[Ints], answer: Answer, *, integral: bool
    ) -> float:
        """What `answer` proves, in solver units: its bound, prices and schedule are kept."""
        self.solved_nonzeros = milp.num_nonzeros
        names = ", ".join(self.graph.op_names[cut.op] for cut in cuts[:3])
        kind = "MILP" if integral else "relaxed MILP"
        many = f"{len(cuts)} cuts" if len(cuts) > 1 else "the cut"
        how = f"{kind} of {many} at {names}{', ...' if len(cuts) > 3 else ''}"
        ops = tuple(cut.op for cut in cuts)
        if answer.infeasible:
            self.keep(math.inf, how, ops)
            return math.inf
        self.keep(self.times.bound_s(answer.bound), how, ops)
        if answer.prices is not None:
            worth = answer.prices[: len(ops)]
            self.places.prices = dict(zip(ops, worth.tolist(), strict=True)) if worth.any() else {}
        if answer.x is not None:
            x = answer.x
            self.look_at(lazy_runs(self.graph, cuts, [x[columns] > 0.5 for columns in alive]))
        return answer.bound or 0.0

    def look_at(self, runs: list[int] | None) -> None:
        """Replay a sequence of runs, and remember where it is over budget."""
        if runs is None:
            return
        schedule = Schedule(self.graph.op_names, runs)
        self.suggested.append(schedule)
        simulation = simulate(self.graph, schedule)
        if simulation.peak_bytes <= self.budget_bytes:
            self.worst = None
            if simulation.makespan_s < self.best_s:
                self.best, self.best_s = schedule, simulation.makespan_s
            return
        self.worst = crowded_at(runs, simulation, self.budget_bytes)

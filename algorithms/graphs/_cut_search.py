"""The search for cuts that prove much, and for schedules that do what the cuts ask for."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from schedsim.dataflow.graph import Graph
from schedsim.plans.effort import Effort
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import simulate

from ._cut_model import cut_milp, longer_intervals
from ._cut_rounds import CutRounds
from ._cut_table import Bools, Cut, CutTable, Ints, Order, cut_bound, fixed_order_bounds
from ._memory_need import END, MemoryNeed, largest_need
from ._milp import MOST_OF_SIMPLEX, Answer, Milp, StartOf, milp_work, relaxation_work
from ._primal_dual import steps_work
from ._scaling import SolverTimes, solver_times

# Most cuts that are looked at one by one, and most that are put into one MILP.
_MOST_SINGLE = 12
_MOST_WHOLE = 3
_MOST_CUTS = 40
_FEW_CUTS = 5
# Numbers of cuts in relaxations: the next number follows where a relaxation proves so much more.
# And the share of the effort that all of them may take.
_SPREAD_CUTS = (3, 6, 12, 16, 20, 24, 32, 48, 64)
_WORTH, _RELAXED_SHARE = 0.003, 0.5
# The relaxation of so many cuts shows what more of them need: more intervals, where these prove so
# much more; and none at ops whose memory has a price of less than that share of the largest. Where
# it is large, it may take that share of the relaxations' work.
_LOOK_CUTS, _DOUBLING_WORTH, _PRICED, _LOOK_SHARE = 6, 0.001, 0.02, 0.25
# The share of what is left that an MILP of several cuts may take: one that takes longer is not
# followed by an easier one.
_WHOLE_SHARE = 0.8
# The work of the largest program of all cuts at once: its first node.
_MOST_AT_ONCE = 1.0
# Cuts are spread over ops where what must be evicted costs that share of the most, and more widely
# where prices are known.
_PROMISING, _WIDELY = 0.15, 0.02
# The cuts of the first round of large relaxations, where intervals of many lengths count, and the
# share of the work that must be enough for them.
_FIRST_ROUND, _FIRST_SHARE = 20, 0.15
# In rounds, a share of the work is enough for the simplex method on programs of so many non-zeros.
_MOST_EXACT = 10_000
# To put a program together, and to carry over what the one before came to, takes so much work for
# each non-zero.
_BUILT = 2e-7
# So many steps of the first-order method, for each cut, bring a relaxation within some percent of
# its optimum; fewer where there are no intervals of many lengths.
_STEPS_A_CUT, _FEWER_STEPS = 20, 10
# Where whole numbers at two cuts would take more than half of the effort, or so many cuts prove so
# much more than the first few, this is the relaxations' share.
_LARGE_SHARE, _MUCH = 0.9, 0.04
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
        self.times: SolverTimes = solver_times(graph.arrays.op_time_s)
        self.extra_s, self.how = 0.0, "store-all time"
        self.proved_at: tuple[int, ...] = ()
        self.best: Schedule | None = None
        self.best_s = math.inf
        self.suggested: list[Schedule] = []
        self.need: MemoryNeed | None = None
        self.solved_nonzeros = 0  # of the last program
        self.prices: dict[int, float] = {}  # of memory at the cuts of the last relaxation
        # The cuts of the last relaxation, and where it came to.
        self.relaxed: tuple[list[int], Answer] | None = None
        self.doubling = False  # whether relaxations look at intervals of many lengths
        self.cuts: dict[int, Cut] = {}
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
        self.single_milps()
        self.several_cuts()

    def keep(self, extra_s: float, how: str, ops: tuple[int, ...]) -> None:
        """Keep a bound if it is better than the known one; `ops` are the ops of its cuts."""
        if extra_s > self.extra_s:
            self.extra_s, self.proved_at = extra_s, ops
            self.how = f"no schedule fits: {how}" if math.isinf(extra_s) else how

    def cut(self, op: int) -> Cut:
        """The cut at `op`, made once."""
        if op not in self.cuts:
            self.cuts[op] = self.table.cut(op)
        return self.cuts[op]

    def knapsacks(self) -> None:
        """Solve the fractional knapsack at each op, the most promising op first."""
        costs = self.times.costs
        rough = fixed_order_bounds(self.graph, self.budget_bytes, costs)
        free = costs + 0.1 * costs.mean() if costs.any() else np.ones(costs.size)
        self.promise = fixed_order_bounds(self.graph, self.budget_bytes, free)
        self.effort.spend(128 * self.nonzeros / _STEPS_PER_UNIT)
        best = 0.0
        for place, op in enumerate(np.argsort(-rough, kind="stable").tolist()):
            if rough[op] <= 0:
                break
            # In any order of first runs, a cut is crossed by no more than in the fixed order.
            if place >= _MOST_SINGLE and (rough[op] <= best or place > 200 or not self.may(0.0)):
                break
            self.effort.spend(self.nonzeros / _STEPS_PER_UNIT)
            found = cut_bound(self.table, self.cut(op), self.times.costs)
            self.bound_at[op] = found
            best = max(best, found)
            extra_s = math.inf if math.isinf(found) else self.times.bound_s(found)
            self.keep(extra_s, f"knapsack at {self.graph.op_names[op]}", (op,))
        # Where all tensors to evict seem to cost nothing, the knapsack is blind: a tensor that
        # takes no time itself may need others that do.
        worst = np.argsort(-self.promise, kind="stable")[:_MOST_WHOLE]
        for op in worst[self.promise[worst] > 0].tolist():
            self.bound_at.setdefault(op, 0.0)

    def relaxations(self) -> None:
        """Solve relaxations of more and more cuts, spread over the step, then of better cuts.

        On wide graphs many cuts prove more in fractions than a few cuts in whole numbers.
        """
        relaxed_share = _RELAXED_SHARE
        if self.effort.counted and milp_work(2 * self.nonzeros) > 0.5 * self.effort.left:
            relaxed_share = _LARGE_SHARE
        until = self._spread_relaxations(relaxed_share)
        CutRounds(self).run(until)

    def spread_widely(self, left: float) -> list[int]:
        """More cuts for large relaxations, where intervals of many lengths prove much.

        None where so much effort is too little for them, or where more were looked at before.
        """
        if not self.doubling or len(self.prices) > _LOOK_CUTS:
            return []
        found = self._placed(_FIRST_ROUND)
        return found if self.affords(found, _FIRST_SHARE * left) else []

    def _spread_relaxations(self, relaxed_share: float) -> float:
        """Spread more and more cuts; the effort that relaxations must leave."""
        begun = self.effort.left
        until = begun * (1.0 - relaxed_share)
        before: list[int] = []
        first_s, took = 0.0, 0.0
        counts = list(_SPREAD_CUTS)
        while counts:
            count = self._affordable(counts)
            chosen = self._placed(count)
            if len(chosen) <= len(before):
                break
            # Iterations grow with the rows, the time of each does too, and so do the rows
            # themselves.
            growth = (len(chosen) / max(1, len(before))) ** 2.5
            likely = self._likely_nonzeros(chosen)
            most = max(took * growth, relaxation_work(likely))
            if likely > MOST_OF_SIMPLEX and before:
                break  # the rounds choose better cuts for the first-order method
            if not self.may(most + until):
                break
            known_s, left = self.extra_s, self.effort.left
            share = (left - until) / left if self.effort.counted else relaxed_share
            looks = count == _LOOK_CUTS
            part = _LOOK_SHARE if looks else 1.0
            self.solve(self._cuts(chosen), share * part, integral=False)
            took = left - self.effort.left
            small = self.solved_nonzeros <= MOST_OF_SIMPLEX and count > _LOOK_CUTS
            if (looks or small) and not self.doubling and self.may(until + took):
                self._try_doubling(chosen, share)
            if before and self.extra_s < known_s * (1 + _WORTH):
                break
            first_s = first_s or self.extra_s
            if looks and self.effort.counted and self.extra_s > first_s * (1 + _MUCH):
                until = begun * (1.0 - _LARGE_SHARE)
            before = chosen
            counts = [one for one in counts if one > count]
        return until

    def affords(self, ops: list[int], left: float) -> bool:
        """Whether so much effort is enough for the relaxation with cuts at `ops`."""
        likely = self._likely_nonzeros(ops)
        if likely <= MOST_OF_SIMPLEX:
            return relaxation_work(likely) <= left
        steps_a_cut = _STEPS_A_CUT if self.doubling else _FEWER_STEPS
        return steps_work(likely, steps_a_cut * len(ops)) <= left

    def _try_doubling(self, chosen: list[int], share: float) -> None:
        """Look at intervals of many lengths from now on, if they prove more at these cuts."""
        known_s, self.doubling = self.extra_s, True
        self.solve(self._cuts(chosen), share * _LOOK_SHARE, integral=False)
        self.doubling = self.extra_s >= known_s * (1 + _DOUBLING_WORTH)

    def _cuts(self, ops: list[int]) -> list[Cut]:
        return [self.cut(op) for op in sorted(ops)]

    def _placed(self, count: int) -> list[int]:
        """About `count` ops to cut at.

        Where intervals of many lengths count, from the first op on whose memory has a price.
        """
        chosen: list[int] = []
        if count <= _LOOK_CUTS or not self.prices:
            self.choose(chosen, self.spread(count))
            return chosen
        first = 0
        if self.doubling:
            least = _PRICED * max(self.prices.values())
            first = min(op for op, price in self.prices.items() if price >= least)
        self.choose(chosen, self.spread(count, first=first, share=_WIDELY))
        return chosen

    def proved_small(self, most_nonzeros: int) -> tuple[int, ...]:
        """`proved_at`, without the cuts of least price as long as their program is larger."""
        ops = sorted(self.proved_at, key=lambda op: (-self.prices.get(op, 0.0), op))
        while len(ops) > 1 and self._likely_nonzeros(ops) > most_nonzeros:
            ops.pop()
        return tuple(sorted(ops))

    def _likely_nonzeros(self, ops: list[int]) -> float:
        """About the non-zeros of a relaxation with cuts at `ops`."""
        arrays = self.graph.arrays
        place = np.sort(np.array(ops, dtype=np.int64))
        tensors = arrays.write_start[place + 1]
        each = 3.0 * arrays.read_start[place + 1] + 4.0 * tensors
        total = float(each.sum())
        for k, _ in longer_intervals(place.size, doubling=self.doubling):
            total += float(each[k] + 3 * place[k])
        return total

    def _affordable(self, counts: list[int]) -> int:
        """The next number of cuts; the first relaxation has more of them where it is large."""
        found = counts[0]
        if found <= _LOOK_CUTS and not self._is_small(_LOOK_CUTS):
            return _LOOK_CUTS
        return found

    def _is_small(self, count: int) -> bool:
        return self._likely_nonzeros(self._placed(count)) <= MOST_OF_SIMPLEX

    def single_milps(self) -> None:
        """Solve MILPs of single cuts, with what recomputation reads: relaxed, then whole."""
        relaxed: dict[int, float] = {}
        enough = 0.85 * self.effort.left
        for op in sorted(self.bound_at, key=lambda op: -self.bound_at[op])[:_MOST_SINGLE]:
            if not self.may(relaxation_work(self.nonzeros)):
                break
            if relaxed and not self.effort.allows(enough):
                break
            relaxed[op] = self.solve([self.cut(op)], 0.3, integral=False) or 0.0
        for op in sorted(relaxed, key=lambda op: -relaxed[op])[:_MOST_WHOLE]:
            if self.may(0.2 * enough):
                self.bound_at[op] = self.solve([self.cut(op)], 0.5, integral=True) or 0.0

    def several_cuts(self) -> None:
        """Solve MILPs of several cuts, adding one where the suggestion is most over budget.

        Where that is beside a repeated run, the cuts on both sides of the run are added, and the
        MILP looks at memory beside that run. The search chooses; the bound holds for any choice.
        """
        if not self.bound_at:
            return
        chosen = [max(self.bound_at, key=lambda op: self.bound_at[op])]
        beside: set[tuple[int, int]] = set()  # (op of the cut behind, op that is repeated)
        spread = self.spread(_FEW_CUTS)
        self.worst = None
        while len(chosen) < _MOST_CUTS and not self.is_done():
            before = (len(chosen), len(beside))
            if self.worst is not None:
                op, repeated = self.worst
                if self.table.order == "free":
                    repeated = ()
                self.choose(chosen, [op - 1, op] if repeated else [op])
                if op in chosen and op - 1 in chosen:
                    beside.update((op, again) for again in repeated)
            if before == (len(chosen), len(beside)):
                self._choose_promising(chosen)
            while spread and before == (len(chosen), len(beside)):
                self.choose(chosen, [spread.pop(0)])
            if before == (len(chosen), len(beside)):
                return
            chosen.sort()
            if not self.may(relaxation_work(self.nonzeros * len(chosen))):
                return
            answer = self.solve(
                [self.cut(op) for op in chosen],
                _WHOLE_SHARE,
                integral=True,
                beside=[(chosen.index(op) - 1, again) for op, again in sorted(beside)],
            )
            if answer is None:
                return

    def _choose_promising(self, chosen: list[int]) -> None:
        """Add all cuts at which something must be evicted, if their MILP is not too expensive.

        On small graphs they prove more than a few. Beyond these the solver would be at work for
        long after an interrupt, or after the last second.
        """
        every = list(chosen)
        self.choose(every, self.spread(_MOST_CUTS, share=_WIDELY))
        work = milp_work(int(self._likely_nonzeros(every)))
        if work <= _MOST_AT_ONCE and self.may(work / _WHOLE_SHARE):
            chosen[:] = every

    def choose(self, chosen: list[int], ops: list[int]) -> None:
        """Add those of `ops` to `chosen` whose place among the others is sure."""
        for op in ops:
            if op not in chosen and self.is_related(op, chosen):
                chosen.append(op)

    def is_related(self, op: int, chosen: list[int]) -> bool:
        """Whether the first run of `op` is surely before or after those of all the others."""
        cut = self.cut(op)
        return all(cut.before[other] or cut.after[other] for other in chosen)

    def spread(self, count: int, *, first: int = 0, share: float = _PROMISING) -> list[int]:
        """Ops at which something must be evicted, one in each of `count` stretches; worst first.

        From op `first` on, and where the promise is more than `share` of the most.
        """
        some = np.flatnonzero(self.promise > share * self.promise.max())
        some = some[some >= first]
        if not some.size:
            return []
        edges = np.linspace(some[0], some[-1] + 1, count + 1).astype(int)
        found = {
            int(low + np.argmax(self.promise[low:high]))
            for low, high in pairwise(edges.tolist())
            if high > low
        }
        return sorted(found, key=lambda op: (-self.promise[op], op))

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
        known = 0.0
        if integral and len(cuts) > 1:
            known = self.extra_s / self.times.unit_s * (1 - 1e-9)
        milp, alive = cut_milp(
            self.table,
            cuts,
            self.times.costs,
            beside=beside,
            at_least=known,
            doubling=self.doubling and not integral,
        )
        if not self.effort.counted and not self.effort.allows(relaxation_work(milp.num_nonzeros)):
            return None
        if self.effort.counted:
            # An MILP that is too expensive in whole numbers is relaxed: its optimum is a bound as
            # well.
            integral = integral and milp_work(milp.num_nonzeros) <= self.effort.left
        with self.effort.part(share) as part:
            answer = milp.solve(part, integral=integral, halted=self._halted.is_set)
        if not integral and answer.place is not None:
            self.relaxed = [cut.op for cut in cuts], answer
        return self._take_in(cuts, milp, alive, answer, integral=integral)

    def relax(
        self, ops: list[int], longer: list[tuple[int, int]], share: float, start: StartOf | None
    ) -> Answer | None:
        """The relaxation of cuts at `ops`, ascending, with intervals between those `longer` pairs.

        It may take `share` of the effort left; the first-order method begins at `start`. ``None``
        as of `solve`.
        """
        cuts = [self.cut(op) for op in ops]
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
            self.prices = dict(zip(ops, worth.tolist(), strict=True)) if worth.any() else {}
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
        sequence = np.array(runs)
        is_first = np.zeros(sequence.size, dtype=np.bool_)
        is_first[np.unique(sequence, return_index=True)[1]] = True
        # A repeated run belongs to the next first run behind it.
        places = np.flatnonzero(is_first)
        stage = int(np.searchsorted(places, simulation.peak_run))
        if stage == places.size:
            self.worst = (int(sequence[places[-1]]), ())
            return
        over = np.flatnonzero(simulation.memory_bytes > self.budget_bytes)
        low = places[stage - 1] if stage else -1
        repeats = over[(over > low) & (over < places[stage])]
        self.worst = (int(sequence[places[stage]]), tuple(sorted(set(sequence[repeats].tolist()))))


def lazy_runs(graph: Graph, cuts: list[Cut], alive: list[Bools]) -> list[int] | None:
    """Every first run in the graph's order, with what the cuts evict recomputed where needed.

    Parameters
    ----------
    alive
        For each cut, the tensors that stay alive across it, ``(num_tensors,)``.

    Returns
    -------
    list of int or None
        ``None`` where a graph input or the output of a ``once`` op would have to be recomputed.
    """
    arrays = graph.arrays
    reads = _lists(arrays.read_start, arrays.read_tensor)
    writes = _lists(arrays.write_start, arrays.write_tensor)
    producer = arrays.tensor_producer.tolist()
    lasting = arrays.tensor_producer < 0
    lasting |= arrays.op_once[arrays.tensor_producer]
    kept_at = {cut.op: kept | cut.given | lasting for cut, kept in zip(cuts, alive, strict=True)}
    readers = np.repeat(np.arange(graph.num_ops), np.diff(arrays.read_start))
    ahead = {}
    for cut, kept in zip(cuts, alive, strict=True):
        read_later = arrays.tensor_result.copy()
        read_later[arrays.read_tensor[readers > cut.op]] = True
        earlier = (arrays.tensor_producer >= 0) & (arrays.tensor_producer < cut.op)
        ahead[cut.op] = kept & ~cut.given & read_later & earlier
    there = arrays.tensor_producer < 0
    runs: list[int] = []

    def run(op: int) -> None:
        """Append `op` to the runs, behind all runs that its inputs need, without recursion."""
        stack = [(op, False)]
        while stack:
            item, ready = stack.pop()
            if ready:
                runs.append(item)
                there[writes[item]] = True
                continue
            stack.append((item, True))
            missing = {producer[t] for t in reads[item] if not there[t]}
            stack += [(source, False) for source in sorted(missing, reverse=True)]

    for op in range(graph.num_ops):
        if op in kept_at:
            # Tensors recomputed ahead of a cut: behind the cut, their own inputs may be gone.
            for tensor in np.flatnonzero(ahead[op] & ~there).tolist():
                if not there[tensor]:
                    run(producer[tensor])
        run(op)
        if op in kept_at:
            there &= kept_at[op]
    for tensor in np.flatnonzero(arrays.tensor_result & ~there).tolist():
        if not there[tensor]:
            run(producer[tensor])
    return runs if _is_legal(arrays.op_once, runs) else None


def _is_legal(op_once: NDArray[np.bool_], runs: list[int]) -> bool:
    counts = np.bincount(runs, minlength=op_once.size)
    return bool(np.all(counts[op_once] == 1))


def _lists(start: NDArray[np.int64], items: NDArray[np.int64]) -> list[list[int]]:
    return [part.tolist() for part in np.split(items, start[1:-1])]

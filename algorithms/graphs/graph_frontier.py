"""The memory/time curve of a graph, searched at budgets where a search tells most."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from schedsim.dataflow.graph import Graph
from schedsim.errors import SchedsimError, UnsupportedError
from schedsim.plans.curves import BoundPoint, ParetoCurve, ParetoPoint
from schedsim.plans.effort import Effort
from schedsim.plans.plan import OPTIMALITY_TOLERANCE, timed
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import Simulation, simulate

from ._block_line import SolvedLine
from ._budget_sweep import BudgetSweep
from ._cut_table import Order
from ._forward_part import forward_part
from .bounds import least_memory_bytes, scope_of
from .chen_articulation import segment_runs
from .hierarchical import LARGE, blocks_repeat, solved_line
from .local_search import local_search

_WORK = 60.0
# Shares of the effort: when the line of blocks is given up, when the descent to the least memory
# ends (what the line took is added), and when the search for more points ends. The rest of the
# effort is spent on the points that are not proven.
_LINE_SHARE = 0.35
_DESCENT_SHARE = 0.25
_SEARCH_SHARE = 0.6
# As long as there are so few points, more points are worth more than better ones.
_FEW_POINTS, _FEW_SHARE = 8, 0.9
# The curve begins with sweeps where as many single searches as there are points would take more
# than that share of the effort; the first sweep takes so much of it, and the later ones together.
# On few ops a search is quick, and finds what a sweep passes by.
_MANY, _DOWN_SHARE, _BETWEEN_SHARE = 0.1, 0.1, 0.3
_MANY_OPS = 200
# Budgets closer together than this part of the store-all peak count as one.
_RESOLUTION = 500


@timed()
def graph_frontier(
    graph: Graph,
    *,
    order: Order = "fixed",
    time_limit_s: float | None = None,
    effort: Effort | float | None = None,
    num_points: int = 24,
    seed: int = 0,
) -> ParetoCurve:
    """The memory/time curve of `graph`, by `local_search` at budgets chosen as the curve appears.

    The search begins at the store-all peak, and at the least memory of segments between
    articulation points (`chen_articulation`). It then halves: first the way down to the proven
    least memory, later the distance between the least budget with a schedule and the largest
    without, until the least feasible memory is known to a 500th of the store-all peak. Then it
    takes the two neighbouring points whose rectangle, budgets times seconds, is largest, and
    searches in the middle between their budgets: the curve runs through these rectangles, and they
    are large where the curve bends and where points are far apart. Budgets searched in vain, and
    proven bounds, make a rectangle smaller. In the end each point that is not proven is searched
    once more, from the least budget up.

    Where the effort is spent before there are enough points, segments of other sizes take the
    largest gaps. On a large graph that is a line of blocks, the search begins with schedules of
    that line, solved once for all budgets (`hierarchical`).

    Where single searches are expensive, on hundreds of ops and more, one walker first goes through
    many budgets without starting anew: down from the store-all peak in a few large steps, and, once
    the least memory is known, up from there and down again in small steps. On 3,000 ops a budget
    then costs a tenth of a search, and most of the effort is left for the points that are searched
    again, a bound beside each. Where that is too little for all points, they are some that are
    spread over the curve; the others have the bound of the next one above, which holds for them.

    Every search starts from the schedules of both neighbouring points, of which the one of the
    smaller budget fits. A point's budget is the simulated peak of its schedule; points that another
    point beats in both budget and time are dropped.

    Parameters
    ----------
    order
        ``"fixed"`` or ``"free"``, as of `local_search`.
    time_limit_s, effort
        For the whole curve, as of `local_search`; 60 units of work where neither is given. On
        10,000 ops no search is begun for less than some seconds, so that few points are found
        there.
    num_points
        The number of points at which the search stops; at least 2.
    seed
        Seed of all random choices of the searches.

    Returns
    -------
    ParetoCurve
        The curve with its schedules; an interrupt gives the curve so far. The last point is
        store-all, or a schedule of the same time with less memory.

    Raises
    ------
    SchedsimError
        An option is outside its range.

    Notes
    -----
    O(num_points) searches. Choosing by rectangles is the sandwich rule for monotone curves (Ruzika
    & Wiecek 2005, "Approximation methods in multiobjective programming", section 3).

    Examples
    --------
    >>> from schedsim import Chain
    >>> chain = Chain.from_arrays("four", 1, forward_s=[1] * 4, backward_s=[1] * 4,
    ...                           output_bytes=[1] * 4, saved_bytes=[1] * 4)
    >>> curve = graph_frontier(chain.graph, order="free", effort=20)
    >>> [(point.budget_bytes, point.makespan_s) for point in curve.points]
    [(5, 11.0), (6, 9.0), (7, 8.0)]
    >>> curve.exact
    True
    """
    scope = scope_of(order)
    if num_points < 2:
        raise SchedsimError(f"num_points {num_points} is not at least 2", hint="ask for both ends")
    effort = Effort.of(effort, time_limit_s, default=_WORK)
    curve = _Curve(graph, order, effort, num_points, seed)
    try:
        curve.add_line()
        curve.sweep_down()
        curve.descend()
        curve.sweep_between()
        curve.refine()
        curve.polish()
    except (KeyboardInterrupt, _CurveInterrupted):
        effort.cancel()
    curve.fill()
    return ParetoCurve(
        workload_name=graph.name,
        planner="local_search",
        scope=str(scope),
        exact=curve.is_exact(),
        points=tuple(curve.points()),
        planning_s=0.0,
        store_all_s=graph.store_all_s,
        bounds=tuple(curve.bounds()),
        least_memory_bytes=curve.least_bytes,
        ended_by=effort.ended_by,
        seed=seed,
    )


class _CurveInterrupted(Exception):
    """The user interrupted a search."""


@dataclass(frozen=True)
class _Gap:
    """The open rectangle between two neighbouring points: budgets, and seconds."""

    first_bytes: int
    last_bytes: int
    height_s: float

    @property
    def num_budgets(self) -> int:
        return self.last_bytes - self.first_bytes + 1

    @property
    def area(self) -> float:
        return self.num_budgets * self.height_s


class _Curve:
    """Schedules found, budgets searched, and bounds proven."""

    def __init__(
        self,
        graph: Graph,
        order: Order,
        effort: Effort,
        num_points: int,
        seed: int,
    ) -> None:
        self.graph, self.order, self.seed = graph, order, seed
        self.effort, self.num_points = effort, num_points
        self.whole = effort.left
        everything = simulate(graph, Schedule.store_all(graph))
        self.found = [everything]  # by ascending peak, and falling makespan
        self.segments: list[Simulation] = []
        self.asked: list[int] = []
        self.proven: list[tuple[int, float]] = [(everything.peak_bytes, graph.store_all_s)]
        self.least_bytes, _ = least_memory_bytes(graph)
        self.finest_bytes = max(1, everything.peak_bytes // _RESOLUTION)
        self.lowest_vain = 0  # a budget that a sweep ended at without a schedule
        self.line_share = 0.0  # share of the effort that the line took
        # No search is begun with less.
        self.least_work = min(0.02 + 3e-4 * graph.num_ops, self.whole / 4)

    def left(self, share: float) -> float:
        """The effort left until that share of it is used; zero once all of it is used."""
        return min(self.effort.left, self.effort.left - (1.0 - share) * self.whole)

    def is_worth_it(self, share: float) -> bool:
        """Whether a search may begin before that share of the effort is used."""
        return self.effort.allows(max(self.least_work, 1e-9) + (1.0 - share) * self.whole)

    def add_line(self) -> None:
        """Add schedules from the repeated blocks of a large graph, from most to least memory."""
        if self.graph.num_ops < LARGE or not blocks_repeat(self.graph):
            return
        try:
            line = solved_line(self.graph, effort=self.effort, seed=self.seed)
        except UnsupportedError:
            return  # no line of blocks
        self._ask_line(line)
        self.line_share = 1.0 - self.effort.left / self.whole if self.whole else 1.0

    def _ask_line(self, line: SolvedLine) -> None:
        most = self.found[-1].peak_bytes
        low, width = line.line.outside_bytes, most - line.line.outside_bytes
        for k in range(self.num_points - 1, 0, -1):
            if not self.effort.allows((1.0 - _LINE_SHARE) * self.whole):
                return
            self.effort.spend(line.work)
            # Denser towards the least, where the curve is steep.
            share = (k / self.num_points) ** 1.5
            budget = low + int(share * width)
            schedules = line.schedules(budget)
            for one in schedules[:1]:
                self.add(one)
            if not schedules or schedules[0].peak_bytes > budget:
                return

    def sweeps(self) -> bool:
        """Whether single searches are too expensive for the first points of the curve."""
        if self.num_points <= 2 or self.graph.num_ops < _MANY_OPS:
            return False
        return self.num_points * self.least_work > _MANY * self.whole

    def sweep_down(self) -> None:
        """Go down from the store-all peak until nothing fits, in few large steps."""
        if not self.sweeps() or len(self.found) > 1:
            return
        most, steps = self.found[-1].peak_bytes, max(2, self.num_points // 3)
        sweep = BudgetSweep(self.graph, free=self.order == "free", seed=self.seed)
        with self.effort.take(_DOWN_SHARE * self.whole) as whole:
            amount = whole.left / steps
            for k in range(steps - 1, 0, -1):
                budget = self.least_bytes + k * (most - self.least_bytes) // steps
                found = None
                while found is None and not whole.is_over():  # it goes on from where it came to
                    with whole.take(amount) as part:
                        found = sweep.at(budget, part)
                if found is None:
                    self.lowest_vain = budget
                    return
                self.add(found)

    def sweep_between(self) -> None:
        """Go up from the least budget with a schedule, and down again, in small steps."""
        if not self.sweeps() or len(self.found) < 2:
            return
        low, most = self.found[0].peak_bytes, self.found[-1].peak_bytes
        steps = max(2, 2 * self.num_points // 3)
        sweep = BudgetSweep(self.graph, free=self.order == "free", seed=self.seed)
        # Denser towards the least, where the curve is steep.
        budgets = [low + int((k / steps) ** 1.5 * (most - low)) for k in range(1, steps)]
        for upwards in (True, False):
            for budget in budgets if upwards else reversed(budgets):
                if self.effort.is_over():
                    return
                below = [one for one in self.found if one.peak_bytes <= budget][-1:]
                above = [one for one in self.found if one.peak_bytes > budget][:1]
                # There is none above where store-all's time is met with so little memory.
                start = below[0] if upwards or not above else above[0]
                sweep.go_on_from(start.schedule)
                with self.effort.take(_BETWEEN_SHARE * self.whole / (2 * steps)) as part:
                    found = sweep.at(budget, part)
                if found is not None:
                    self.add(found)

    def descend(self) -> None:
        """Search downwards for the least feasible memory."""
        self.add_segments()
        too_small = self.least_bytes - 1
        least: Simulation | None = None  # of the least peak, whatever its time
        while self.is_worth_it(self.descent_share()):
            lowest = self.found[0].peak_bytes if least is None else least.peak_bytes
            if lowest - too_small <= self.finest_bytes:
                break
            budget = (lowest + too_small) // 2
            if not self.asked and self.least_bytes > too_small:
                budget = max(budget, self.least_bytes)
            if not self.asked and budget < self.lowest_vain < lowest:
                budget = self.lowest_vain  # the sweep had little work for it
            seen = self.ask(budget, self.amount(), near=least)
            if self.found[0].peak_bytes <= budget:
                least = None
            else:
                too_small = max(budget, self.least_bytes - 1)
                if seen is not None and seen.peak_bytes < lowest:
                    least = seen
        if least is not None:
            self.ask(least.peak_bytes, self.amount(), near=least)

    def descent_share(self) -> float:
        """The share of the effort after which the least memory is no longer looked for."""
        # One point alone is no curve, and there is no gap below it to search in.
        return _FEW_SHARE if len(self.found) == 1 else _DESCENT_SHARE + self.line_share

    def add_segments(self) -> None:
        """Add Chen's segments: on long graphs they need less memory than a short search finds."""
        for _, runs in segment_runs(forward_part(self.graph.arrays)):
            self.segments.append(simulate(self.graph, Schedule(self.graph.op_names, runs)))
            if self.effort.out_of_time():
                break
        if self.segments:
            self.add(min(self.segments, key=lambda one: (one.peak_bytes, one.makespan_s)))

    def fill(self) -> None:
        """Add segments where there are fewer points than asked for, in the largest gaps."""
        while len(self.found) < self.num_points:
            for gap in sorted(self.gaps(), key=lambda gap: -gap.area):
                middle = (gap.first_bytes + gap.last_bytes) // 2
                inside = [one for one in self.segments if self.is_inside(one, gap)]
                if inside:
                    self.add(min(inside, key=lambda one: abs(one.peak_bytes - middle)))
                    break
            else:
                return

    def is_inside(self, one: Simulation, gap: _Gap) -> bool:
        """Whether `one` is a point that no point found beats, within `gap`."""
        if not gap.first_bytes <= one.peak_bytes <= gap.last_bytes:
            return False
        faster = min(old.makespan_s for old in self.found if old.peak_bytes <= one.peak_bytes)
        return one.makespan_s * (1 + OPTIMALITY_TOLERANCE) < faster

    def refine(self) -> None:
        """Search in the largest gap until none is open, the effort is spent or there are enough."""
        while len(self.found) < self.num_points and self.is_worth_it(self.search_share()):
            gaps = [gap for gap in self.gaps() if gap.num_budgets >= self.finest_bytes]
            if not gaps:
                break
            gap = max(gaps, key=lambda gap: gap.area)
            self.ask((gap.first_bytes + gap.last_bytes) // 2, self.amount())

    def polish(self) -> None:
        """Search again at the points that are not proven, from the least budget up.

        Where there is too little effort for all of them, at some that are spread over the curve.
        """
        budgets = [point.budget_bytes for point in self.points() if not point.exact]
        most = max(1, int(self.effort.left / self.least_work)) if self.least_work else len(budgets)
        if len(budgets) > most:
            places = np.linspace(0, len(budgets) - 1, most).round().astype(int)
            budgets = [budgets[place] for place in places.tolist()]
        for number, budget in enumerate(budgets):
            amount = self.effort.left / (len(budgets) - number)
            if not self.is_worth_it(1.0):
                return
            self.ask(budget, max(amount, self.least_work))

    def amount(self) -> float:
        """The effort of one search, such that enough is left for the other points."""
        left = max(1, self.num_points - len(self.found))
        most = 2 * self.whole / self.num_points
        return max(self.least_work, min(most, self.left(self.search_share()) / left))

    def search_share(self) -> float:
        """The share of the effort at which the search for more points ends."""
        return _FEW_SHARE if len(self.found) < _FEW_POINTS else _SEARCH_SHARE

    def gaps(self) -> Iterator[_Gap]:
        """The open rectangles between neighbouring points."""
        for low, high in pairwise(self.found):
            vain = [b for b in self.asked if low.peak_bytes <= b < high.peak_bytes]
            least_s = max(high.makespan_s, self.bound_s(high.peak_bytes - 1))
            height_s = low.makespan_s - least_s
            first = max([low.peak_bytes, *vain]) + 1
            if first < high.peak_bytes and height_s > OPTIMALITY_TOLERANCE * low.makespan_s:
                yield _Gap(first, high.peak_bytes - 1, height_s)

    def ask(
        self, budget_bytes: int, amount: float, near: Simulation | None = None
    ) -> Simulation | None:
        """Search at a budget from both neighbours; the least peak seen where nothing fits."""
        below = [one for one in self.found if one.peak_bytes <= budget_bytes][-1:]
        above = [one for one in self.found if one.peak_bytes > budget_bytes][:1]
        starts = [near] if near is not None else []
        seen: list[Simulation] = []
        with self.effort.take(amount) as part:
            plan = local_search(
                self.graph,
                budget_bytes,
                order=self.order,
                effort=part,
                seed=self.seed,
                starts=[one.schedule for one in (*starts, *below, *above)],
                on_least=seen.append,
            )
        self.asked.append(budget_bytes)
        self.proven.append((budget_bytes, plan.lower_bound_s))
        if plan.schedule is not None:
            self.add(simulate(self.graph, plan.schedule))
        else:
            self.least_bytes = max(self.least_bytes, plan.least.floor_bytes)
        if plan.search.interrupted:
            raise _CurveInterrupted
        return seen[0] if seen else None

    def add(self, new: Simulation) -> None:
        """Add a schedule and drop what it beats; does nothing where another one beats it."""
        tolerance = 1 + OPTIMALITY_TOLERANCE
        for old in self.found:
            if old.peak_bytes <= new.peak_bytes and old.makespan_s <= new.makespan_s * tolerance:
                return
        kept = [
            old
            for old in self.found
            if old.peak_bytes < new.peak_bytes or old.makespan_s * tolerance < new.makespan_s
        ]
        self.found = sorted([*kept, new], key=lambda one: one.peak_bytes)

    def bound_s(self, budget_bytes: int) -> float:
        """The best bound at a budget: a bound at a larger budget holds here too."""
        bounds = (bound for budget, bound in self.proven if budget >= budget_bytes)
        return max(bounds, default=self.graph.store_all_s)

    def points(self) -> Iterator[ParetoPoint]:
        """The points of the curve, with what is proven at each."""
        for one in self.found:
            bound_s = min(self.bound_s(one.peak_bytes), one.makespan_s)
            yield ParetoPoint(
                budget_bytes=one.peak_bytes,
                makespan_s=one.makespan_s,
                overhead=one.overhead,
                lower_bound_s=bound_s,
                exact=one.makespan_s <= bound_s * (1 + OPTIMALITY_TOLERANCE),
                schedule=one.schedule,
            )

    def bounds(self) -> Iterator[BoundPoint]:
        """The staircase of the bound: the budgets at which it falls."""
        store_all_s = self.graph.store_all_s
        budgets = sorted({budget for budget, _ in self.proven if budget >= self.least_bytes})
        for budget, after in zip(budgets, [*budgets[1:], None], strict=True):
            bound_s = self.bound_s(budget)
            if after is None or bound_s > self.bound_s(after):
                overhead = bound_s / store_all_s - 1 if store_all_s else 0.0
                yield BoundPoint(budget, bound_s, overhead)

    def is_exact(self) -> bool:
        """Whether every point is proven, and no point can lie between or below them."""
        return (
            all(point.exact for point in self.points())
            and not list(self.open_gaps())
            and self.found[0].peak_bytes == self.least_bytes
        )

    def open_gaps(self) -> Iterator[int]:
        """Budgets at which the curve may lie below the points."""
        for low, high in pairwise(self.found):
            bound_s = self.bound_s(high.peak_bytes - 1)
            if low.makespan_s > bound_s * (1 + OPTIMALITY_TOLERANCE):
                yield high.peak_bytes - 1

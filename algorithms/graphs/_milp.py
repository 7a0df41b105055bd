"""Linear and mixed-integer linear programs (MILPs), built in blocks, solved by HiGHS (scipy)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedsim.plans.effort import Effort

from ._primal_dual import BoxedProgram, descend
from ._solver_lines import without_solver_lines

# Non-zeros that HiGHS reads, presolves and solves as a linear program in about a second, where
# few iterations of the simplex method are enough; and the square of the iterations in a unit. An
# iteration takes time in proportion to those before it, because the factors of the basis fill up:
# 3.1 to 5.6e-8 s times the square on relaxations of 12 to 48 cuts of three wide graphs, where
# iterations times non-zeros are off by a factor of eight. So a unit of many iterations takes two to
# three seconds: with less, the widest graphs would be left with a few cuts.
_NONZEROS_PER_UNIT, _SQUARED_PIVOTS_PER_UNIT = 500_000.0, 6e7
_FEWEST_PIVOTS = 1000
# Work of the first node of an MILP for each non-zero, because the solver's cuts and heuristics
# solve many relaxations there, and more with the square of 10,000 non-zeros; and the share of it
# that is enough where the first node solves the program. So much did 90 programs of one to four
# cuts and 500 to 16,000 non-zeros take, on average. Any other node takes a share of the relaxation
# and of that square, and never less than the least.
_FIRST_NODE_NONZERO, _FIRST_NODE_SQUARE, _SOLVED_SHARE = 2e-4, 0.5, 0.7
_NODE_SHARE, _LEAST_NODE = 0.18, 0.008

# Work of an iteration of the simplex method within an MILP, of any and for each non-zero; and so
# many times those of its relaxation take the first node, and any other. Of 150 programs of one to
# six cuts, 300 to 22,000 non-zeros, the first node took 1 to 7 times the iterations of the
# relaxation, another 0.04 to 0.24 times.
_PIVOT, _PIVOT_NONZERO = 1.2e-4, 1e-8
_FIRST_NODE_PIVOTS, _NODE_PIVOTS = 4.0, 0.15

MOST_OF_SIMPLEX = 60_000
"""The most non-zeros of a relaxation that the simplex method solves: in about a second."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_OPTIMAL, _LIMIT, _INFEASIBLE = 0, 1, 2

_MOST = 2**31 - 1
"""The most nodes or iterations that HiGHS counts."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The solver's answer, which callers must check.

    Attributes
    ----------
    x : (num_variables,) float64 or None
        The best point found.
    bound : float or None
        No feasible point costs less; ``None`` where the solver gives no bound.
    infeasible : bool
        The solver claims that there is no feasible point.
    finished : bool
        The solver stopped by itself, not by a limit.
    prices : (num_rows,) float64 or None
        Of a relaxation: what a unit more of each row's upper limit is worth.
    place : SolvedPoint or None
        Of a relaxation: where the solver came to, for one of a similar program to begin there.
    pivots : int or None
        Iterations of the simplex method, where they are known.
    """

    x: Floats | None
    bound: float | None
    infeasible: bool
    finished: bool
    prices: Floats | None = None
    place: SolvedPoint | None = None
    pivots: int | None = None


@dataclass(frozen=True, eq=False)
class SolvedPoint:
    """A point of a relaxation and the prices of its rows, by their labels.

    Attributes
    ----------
    columns, rows
        What the variables and the rows of the boxed program stand for.
    x, prices
        Their values.
    """

    columns: Ints
    rows: Ints
    x: Floats
    prices: Floats


StartOf = Callable[[Ints, Ints], tuple[Floats, Floats]]
"""From the labels of variables and of rows of the boxed program: a point and prices."""


@dataclass(frozen=True, slots=True)
class NodeWork:
    """Work of the first node of an MILP, and of any other.

    `solved` is the share of the first that it takes where it solves the program.
    """

    first: float
    other: float
    solved: float = 1.0

    @classmethod
    def by_size(cls, num_nonzeros: int) -> NodeWork:
        """What most programs take."""
        other = relaxation_work(num_nonzeros) + _squared_work(num_nonzeros)
        return cls(milp_work(num_nonzeros), max(_LEAST_NODE, _NODE_SHARE * other), _SOLVED_SHARE)

    @classmethod
    def by_pivots(cls, num_nonzeros: int, pivots: int) -> NodeWork:
        """What a program takes whose relaxation took so many iterations of the simplex method."""
        work = _pivot_work(num_nonzeros) * max(1, pivots)
        first = relaxation_work(num_nonzeros) + _FIRST_NODE_PIVOTS * work
        return cls(first, _NODE_PIVOTS * work)


def relaxation_work(num_nonzeros: float) -> float:
    """About the work that the relaxation of an MILP with `num_nonzeros` takes."""
    return max(1e-3, num_nonzeros / _NONZEROS_PER_UNIT)


def milp_work(num_nonzeros: int) -> float:
    """About the work of the first node of an MILP, with the solver's cuts and heuristics."""
    first = _FIRST_NODE_NONZERO * num_nonzeros + _squared_work(num_nonzeros)
    return relaxation_work(num_nonzeros) + first


def _pivot_work(num_nonzeros: float) -> float:
    return _PIVOT + _PIVOT_NONZERO * num_nonzeros


def _squared_work(num_nonzeros: float) -> float:
    return _FIRST_NODE_SQUARE * (num_nonzeros / 1e4) ** 2


class Milp:
    """min cost x, with lb <= A x <= ub and lb <= x <= ub; variables and rows come in blocks."""

    def __init__(self) -> None:
        self.num_variables = self.num_rows = 0
        self.columns: dict[str, list[Floats]] = {k: [] for k in ("lb", "ub", "cost", "integral")}
        self.row: list[Ints] = []
        self.column: list[Ints] = []
        self.value: list[Floats] = []
        self.rows_lb: list[Floats] = []
        self.rows_ub: list[Floats] = []
        self.column_labels: list[Ints] = []
        self.row_labels: list[Ints] = []

    @property
    def num_nonzeros(self) -> int:
        return sum(part.size for part in self.value)

    def variables(
        self,
        count: int,
        *,
        lb: Any = 0.0,
        ub: Any = 1.0,
        cost: Any = 0.0,
        integral: Any = False,
        labels: Any = -1,
    ) -> Ints:
        """Indices of `count` new variables; each property is one number or one per variable.

        Labels, of variables and of rows, are numbers that say what they stand for; -1 for nothing.
        """
        for key, value in (("lb", lb), ("ub", ub), ("cost", cost), ("integral", integral)):
            self.columns[key].append(np.broadcast_to(np.asarray(value, np.float64), (count,)))
        self.column_labels.append(np.broadcast_to(np.asarray(labels, np.int64), (count,)))
        self.num_variables += count
        return np.arange(self.num_variables - count, self.num_variables)

    def rows(
        self,
        count: int,
        *terms: tuple[Any, Any],
        lb: Any = -np.inf,
        ub: Any = 0.0,
        labels: Any = -1,
    ) -> None:
        """Add `count` rows, each the sum over the terms of coefficient times variable.

        A term is (columns, coefficient), with one column for each row; -1 stands for no variable.
        """
        placed = ((np.arange(count), *term) for term in terms)
        self.placed(count, *placed, lb=lb, ub=ub, labels=labels)

    def placed(
        self, count: int, *terms: tuple[Any, Any, Any], lb: Any, ub: Any, labels: Any = -1
    ) -> None:
        """Add rows as `rows` does; each term begins with the row within the block."""
        for row, column, value in terms:
            column = np.asarray(column, np.int64)
            keep = column >= 0
            self.row.append(np.broadcast_to(row, column.shape)[keep] + self.num_rows)
            self.column.append(column[keep])
            self.value.append(np.broadcast_to(np.asarray(value, np.float64), column.shape)[keep])
        self.rows_lb.append(np.broadcast_to(np.asarray(lb, np.float64), (count,)))
        self.rows_ub.append(np.broadcast_to(np.asarray(ub, np.float64), (count,)))
        self.row_labels.append(np.broadcast_to(np.asarray(labels, np.int64), (count,)))
        self.num_rows += count

    def solve(
        self,
        effort: Effort,
        *,
        integral: bool = True,
        halted: Callable[[], bool] = bool,
        nodes: NodeWork | None = None,
        pivots: int | None = None,
        start: StartOf | None = None,
        most_of_simplex: int = MOST_OF_SIMPLEX,
    ) -> Answer:
        """Solve by HiGHS with no gap allowed; without `integral`, solve the linear relaxation.

        The work left limits the nodes, or the iterations of a relaxation; the watchdog limits the
        time. The first node is always finished, unless the clock ends it. A relaxation of more than
        `most_of_simplex` non-zeros whose variables all have finite limits is solved by a
        first-order method, which stops where `halted` says so. `nodes` says what the nodes of this
        program take, where that is known, and `start` where the first-order method begins. With the
        `pivots` of the relaxation, the work is counted by iterations of the simplex method; then
        there is no bound where no feasible point is found.
        """
        if integral and pivots is not None:
            return self._solve_by_pivots(effort, pivots)
        if integral:
            return self._solve_whole(effort, nodes or NodeWork.by_size(self.num_nonzeros))
        limited = all(np.isfinite(part).all() for key in ("lb", "ub") for part in self.columns[key])
        if self.num_nonzeros > most_of_simplex and limited:
            return self._solve_roughly(effort, halted, start)
        return self._solve_relaxed(effort)

    def boxed(self) -> BoxedProgram:
        """The linear relaxation, every row as an upper limit."""
        from scipy.sparse import vstack

        matrix, columns, rows_lb, rows_ub = self._arrays()
        upper, lower = np.flatnonzero(rows_ub < np.inf), np.flatnonzero(rows_lb > -np.inf)
        return BoxedProgram(
            matrix=vstack([matrix[upper], -matrix[lower]]).tocsr(),
            most=np.concatenate([rows_ub[upper], -rows_lb[lower]]),
            cost=columns["cost"],
            lb=columns["lb"],
            ub=columns["ub"],
        )

    def labels(self) -> tuple[Ints, Ints]:
        """The labels of the variables, and of the rows of the boxed program."""
        columns, rows = np.concatenate(self.column_labels), np.concatenate(self.row_labels)
        upper, lower = np.concatenate(self.rows_ub) < np.inf, np.concatenate(self.rows_lb) > -np.inf
        return columns, np.concatenate([rows[upper], rows[lower]])

    def _solve_roughly(
        self, effort: Effort, halted: Callable[[], bool], start: StartOf | None = None
    ) -> Answer:
        """Solve by the first-order method, from below, as far as the effort goes."""
        labels = self.labels()
        at = None if start is None else start(*labels)
        found = descend(self.boxed(), effort, halted=halted, start=at)
        infeasible = math.isinf(found.bound)
        return Answer(
            x=None if infeasible else found.x,
            bound=None if infeasible else found.bound,
            infeasible=infeasible,
            finished=found.finished,
            prices=self._of_upper(found.prices),
            place=SolvedPoint(*labels, found.x, found.prices),
        )

    def _of_upper(self, prices: Floats) -> Floats:
        """The price of each row's upper limit, of those of the boxed program's rows."""
        upper = np.flatnonzero(np.concatenate(self.rows_ub) < np.inf)
        found = np.zeros(self.num_rows)
        found[upper] = prices[: upper.size]
        return found

    def _solve_by_pivots(self, effort: Effort, pivots: int) -> Answer:
        """Solve in whole numbers, where the relaxation took so many iterations."""
        from scipy.optimize import linprog

        # Of SciPy's functions for HiGHS, only that for linear programs tells iterations.
        program, nodes = self.boxed(), NodeWork.by_pivots(self.num_nonzeros, pivots)
        options = _limits(effort, nodes, "mip_max_nodes")
        with without_solver_lines():
            result = linprog(
                program.cost,
                A_ub=program.matrix,
                b_ub=program.most,
                bounds=np.stack([program.lb, program.ub], axis=1),
                integrality=np.concatenate(self.columns["integral"]),
                method="highs",
                options=options,
            )
        took = max(0, int(result.nit or 0))
        each = _pivot_work(self.num_nonzeros)
        effort.spend(relaxation_work(self.num_nonzeros) + each * took)
        return _whole_answer(effort, result, took)

    def _solve_relaxed(self, effort: Effort) -> Answer:
        """Solve by the dual simplex method, on small programs faster than others, and exact."""
        from scipy.optimize import linprog

        program = self.boxed()
        work = relaxation_work(self.num_nonzeros)
        options: dict[str, float | int] = {}
        if effort.watchdog_s is not None:
            options["time_limit"] = max(0.01, effort.watchdog_s)
        if effort.counted:
            most = math.sqrt(max(0.0, effort.left - work) * _SQUARED_PIVOTS_PER_UNIT)
            options["maxiter"] = int(min(_MOST, _FEWEST_PIVOTS + most))
        result = linprog(
            program.cost,
            A_ub=program.matrix,
            b_ub=program.most,
            bounds=np.stack([program.lb, program.ub], axis=1),
            method="highs-ds",
            options=options,
        )
        num_pivots = int(result.nit or 0)
        effort.spend(work + num_pivots**2 / _SQUARED_PIVOTS_PER_UNIT)
        limited = result.status == _LIMIT
        if limited and num_pivots < options.get("maxiter", math.inf):
            effort.note_clock()
        done = result.status == _OPTIMAL
        return Answer(
            x=result.x if done else None,
            bound=float(result.fun) if done else None,
            infeasible=result.status == _INFEASIBLE,
            finished=result.status in (_OPTIMAL, _INFEASIBLE),
            prices=self._of_upper(-result.ineqlin.marginals) if done else None,
            place=None
            if not done
            else SolvedPoint(*self.labels(), result.x, -result.ineqlin.marginals),
            pivots=num_pivots,
        )

    def _arrays(self) -> tuple[Any, dict[str, Floats], Floats, Floats]:
        """The matrix, the properties of columns, and the limits of rows."""
        from scipy.sparse import csr_array

        columns = {key: np.concatenate(value) for key, value in self.columns.items()}
        place = (np.concatenate(self.row), np.concatenate(self.column))
        shape = (self.num_rows, self.num_variables)
        matrix = csr_array((np.concatenate(self.value), place), shape=shape)
        return matrix, columns, np.concatenate(self.rows_lb), np.concatenate(self.rows_ub)

    def _solve_whole(self, effort: Effort, nodes: NodeWork) -> Answer:
        from scipy.optimize import Bounds, LinearConstraint, milp

        matrix, columns, rows_lb, rows_ub = self._arrays()
        options = _limits(effort, nodes, "node_limit")
        with without_solver_lines():
            result = milp(
                columns["cost"],
                integrality=columns["integral"],
                bounds=Bounds(columns["lb"], columns["ub"]),
                constraints=LinearConstraint(matrix, rows_lb, rows_ub),
                options=options,
            )
        answer = _whole_answer(effort, result)
        num_nodes = int(result.get("mip_node_count") or 0)
        share = nodes.solved if answer.finished and num_nodes <= 1 else 1.0
        effort.spend(share * nodes.first + nodes.other * max(0, num_nodes - 1))
        return answer


def _limits(effort: Effort, nodes: NodeWork, most_nodes: str) -> dict[str, float | int]:
    """HiGHS's options for a search in whole numbers; SciPy's name for the most nodes differs."""
    options: dict[str, float | int] = {"mip_rel_gap": 0.0}
    if effort.watchdog_s is not None:
        options["time_limit"] = max(0.01, effort.watchdog_s)
    if effort.counted:
        most = min(_MOST, (effort.left - nodes.first) / nodes.other)
        options[most_nodes] = max(1, int(most))
    return options


def _whole_answer(effort: Effort, result: Any, pivots: int | None = None) -> Answer:
    """The answer of a search in whole numbers; that the clock has ended it is noted."""
    if result.status == _LIMIT and "time" in str(result.message).lower():
        effort.note_clock()
    bound = result.get("mip_dual_bound")
    if bound is None and result.status == _OPTIMAL:
        bound = result.fun
    return Answer(
        x=result.x,
        bound=None if bound is None else float(bound),
        infeasible=result.status == _INFEASIBLE,
        finished=result.status in (_OPTIMAL, _INFEASIBLE),
        pivots=pivots,
    )

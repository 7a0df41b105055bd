"""Large linear programs by a first-order method, with a bound that holds for every dual point.

The programs are ``min c x`` with ``A x <= b`` and ``lb <= x <= ub``, all bounds finite. For any
prices y >= 0 of the rows,

    -b y + sum over columns of the least of (c + y A) x between lb and ub

is no more than the least cost. So the bound needs no solver's word: it is computed once more, from
the program as it was given, at the best prices met, and rounded down by more than floats can be
off. Where it is above what any point of the box costs, no point meets the rows.

The prices come from the primal-dual hybrid gradient method (Chambolle and Pock 2011) with the
scaling, restarts and primal weights of PDLP (Applegate et al. 2021), and with reflected steps
towards an anchor (Lu and Yang 2024). A step costs O(non-zeros), where a simplex iteration costs
ever more: of 24 cuts of 1,000 ops, one percent from the optimum takes a thirtieth of the simplex
method's time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedsim.kernels.cached import njit
from schedsim.plans.effort import Effort

Floats = NDArray[np.float64]
Triples = NDArray[np.uint32]
"""Rows by their columns of 1, of -1 and of -1, ``(rows, 3)``."""
Others = tuple[NDArray[np.int32], NDArray[np.int32], Floats]
"""Rows of any values, by CSR."""

# Non-zeros that are gone through in a unit of work; each step counts all of them twice. And
# the work of a look at what is proven, however small the program is.
_NONZEROS_PER_UNIT, _LOOK = 7e8, 3e-4
# Steps between looks at what is proven, and rounds of the scaling.
_STEPS, _SCALINGS = 40, 8
# A restart follows where the steps have become so much shorter than after the last one, or shorter
# and no longer get so, or where they were so many of all steps.
_SUFFICIENT, _NECESSARY, _LONG = 0.2, 0.8, 0.36
# The steps end where the bound is so close to the cost of a nearly feasible point, in parts of the
# bound, or where that share of all steps has raised it by no more than that.
_CLOSE, _LATE, _RISE = 2e-3, 0.4, 3e-3
# What floats may be off, as a share of the sum of all magnitudes: a thousand times too much.
_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class BoxedProgram:
    """min cost x with matrix x <= most and lb <= x <= ub, all of them finite.

    Attributes
    ----------
    matrix : scipy.sparse.csr_array, (rows, columns)
    most : (rows,)
    cost, lb, ub : (columns,)
    """

    matrix: Any
    most: Floats
    cost: Floats
    lb: Floats
    ub: Floats

    def bound(self, prices: Floats) -> float:
        """What `prices` of the rows prove: no feasible point costs less; O(non-zeros).

        Prices below 0 count as 0. Infinite where no feasible point is left.
        """
        prices = np.where(np.isfinite(prices), np.maximum(prices, 0.0), 0.0)
        reduced = self.cost + self.matrix.T @ prices
        least = np.minimum(reduced * self.lb, reduced * self.ub)
        far = np.maximum(np.abs(self.lb), np.abs(self.ub))
        size = np.abs(self.most) @ prices + np.abs(self.cost) @ far
        size += (abs(self.matrix).T @ prices) @ far
        proven = math.fsum(least.tolist()) - math.fsum((self.most * prices).tolist())
        proven -= _ROUNDING * float(size)
        dearest = math.fsum(np.maximum(self.cost * self.lb, self.cost * self.ub).tolist())
        return math.inf if proven > dearest + 1e-6 * (1.0 + abs(dearest)) else float(proven)


@dataclass(frozen=True, slots=True)
class Descent:
    """Where the method came to.

    Attributes
    ----------
    bound
        No feasible point costs less; infinite where there is none.
    x : (columns,)
        A point of the box, which meets the rows only nearly.
    prices : (rows,)
        Prices of the rows that prove the bound.
    finished
        Whether the method stopped by itself, not by its limit.
    """

    bound: float
    x: Floats
    prices: Floats
    finished: bool


def steps_work(num_nonzeros: float, num_steps: int) -> float:
    """The work of so many steps on a program of so many non-zeros."""
    return 2.0 * num_steps * num_nonzeros / _NONZEROS_PER_UNIT


def descend(
    program: BoxedProgram,
    effort: Effort,
    *,
    halted: Callable[[], bool] = bool,
    start: tuple[Floats, Floats] | None = None,
) -> Descent:
    """Raise the bound of `program` until little more can be had, or the effort is spent.

    Parameters
    ----------
    halted
        Asked every 40 steps; where it says so, the method stops.
    start : ((columns,), (rows,))
        A point and prices to start from, as those of a similar program; zeros by default.

    Notes
    -----
    O(non-zeros) a step, at least 40 steps. Deterministic where the effort counts work.
    """
    reduced = _Reduced.of(program)
    if not reduced.rows.size or not reduced.columns.size:
        free = np.zeros(program.most.size)
        return Descent(program.bound(free), program.lb.copy(), free, True)
    method = _PrimalDual.of(reduced)
    if start is not None:
        method.start(start[0][reduced.columns], start[1][reduced.rows])
    effort.spend(_SCALINGS * 4 * reduced.matrix.nnz / _NONZEROS_PER_UNIT)
    work = steps_work(reduced.matrix.nnz, _STEPS + 2) + _LOOK
    known: list[float] = []
    while True:
        method.go_on()
        effort.spend(work)
        known.append(method.best)
        late = known[int((1 - _LATE) * len(known)) - 1] if len(known) > 4 else -math.inf
        finished = method.is_close() or method.best - late <= _RISE * abs(method.best)
        if finished or effort.is_over() or halted():
            break
    x = program.lb.copy()
    x[reduced.columns] = method.at_x * method.column_scale
    prices = np.zeros(program.most.size)
    prices[reduced.rows] = method.best_y * method.row_scale
    return Descent(program.bound(prices), x, prices, finished)


@dataclass(frozen=True, eq=False)
class _Reduced:
    """A program without what is fixed, and without rows that every point of the box meets.

    Rows of `_are_triples` come first.
    """

    matrix: Any
    most: Floats
    cost: Floats
    lb: Floats
    ub: Floats
    fixed_cost: float
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]

    @classmethod
    def of(cls, program: BoxedProgram) -> _Reduced:
        free = program.lb < program.ub
        columns = np.flatnonzero(free)
        fixed = np.where(free, 0.0, program.lb)
        most = program.most - program.matrix @ fixed
        matrix = program.matrix.tocsc()[:, columns].tocsr()
        matrix.eliminate_zeros()
        lb, ub = program.lb[columns], program.ub[columns]
        largest = matrix.maximum(0) @ ub + matrix.minimum(0) @ lb
        rows = np.flatnonzero(largest > most + 1e-12 * np.maximum(1.0, np.abs(most)))
        rows = rows[np.argsort(~_are_triples(matrix[rows]), kind="stable")]
        return cls(
            matrix=matrix[rows].tocsr(),
            most=most[rows],
            cost=program.cost[columns],
            lb=lb,
            ub=ub,
            fixed_cost=float(program.cost @ fixed),
            rows=rows,
            columns=columns,
        )


class _PrimalDual:
    """The method at work on the scaled program.

    Attributes
    ----------
    best, best_y
        The best bound met, as floats have it, and its scaled prices.
    at_x
        The scaled point after the last step.
    """

    def __init__(self, reduced: _Reduced, row_scale: Floats, column_scale: Floats) -> None:
        from scipy.sparse import diags_array

        matrix = (diags_array(row_scale) @ reduced.matrix @ diags_array(column_scale)).tocsr()
        self.row_scale, self.column_scale = row_scale, column_scale
        self.matrix = matrix
        self.triples, self.others = _triples(reduced.matrix), _others(reduced.matrix)
        self.most = reduced.most * row_scale
        self.cost = reduced.cost * column_scale
        self.lb, self.ub = reduced.lb / column_scale, reduced.ub / column_scale
        self.fixed_cost = reduced.fixed_cost
        self.step = 0.998 / self._norm()
        sizes = float(np.linalg.norm(self.cost)), float(np.linalg.norm(self.most))
        self.weight = sizes[0] / sizes[1] if min(sizes) > 0 else 1.0
        num_rows, num_columns = matrix.shape
        self.x = np.clip(np.zeros(num_columns), self.lb, self.ub)
        self.y, self.pull = np.zeros(num_rows), np.zeros(num_columns)
        self.at_x, self.at_y, self.at_pull = self.x.copy(), self.y.copy(), self.pull.copy()
        self.best, self.best_y = -math.inf, self.y.copy()
        self.num_steps = 0
        self._anchor()

    @classmethod
    def of(cls, reduced: _Reduced) -> _PrimalDual:
        """At the beginning, scaled so that all rows and columns have about the same size."""
        size = abs(reduced.matrix).tocsr()
        value = size.data
        row = np.repeat(np.arange(size.shape[0]), np.diff(size.indptr))
        row_scale, column_scale = np.ones(size.shape[0]), np.ones(size.shape[1])
        for number in range(_SCALINGS + 1):
            scaled = value * row_scale[row] * column_scale[size.indices]
            if number < _SCALINGS:
                of_row, of_column = np.zeros(size.shape[0]), np.zeros(size.shape[1])
                np.maximum.at(of_row, row, scaled)
                np.maximum.at(of_column, size.indices, scaled)
            else:
                of_row = np.bincount(row, scaled, size.shape[0])
                of_column = np.bincount(size.indices, scaled, size.shape[1])
            row_scale /= np.sqrt(np.where(of_row > 0, of_row, 1.0))
            column_scale /= np.sqrt(np.where(of_column > 0, of_column, 1.0))
        return cls(reduced, row_scale, column_scale)

    def start(self, x: Floats, prices: Floats) -> None:
        """Begin at a point and prices that are not scaled."""
        self.at_x = np.clip(x / self.column_scale, self.lb, self.ub)
        self.at_y = np.maximum(prices, 0.0) / self.row_scale
        self.at_pull = self.matrix.T @ self.at_y
        sizes = float(np.linalg.norm(self.at_x)), float(np.linalg.norm(self.at_y))
        if min(sizes) > 0:
            self.weight = sizes[1] / sizes[0]
        self._anchor()

    def _norm(self) -> float:
        """About the largest singular value, from above."""
        found = 1.0
        vector = np.random.default_rng(0).random(self.matrix.shape[1])
        for _ in range(20):
            vector = self.matrix.T @ (self.matrix @ vector)
            found = float(np.linalg.norm(vector))
            if found == 0:
                return 1.0
            vector /= found
        return 1.02 * math.sqrt(found)

    def _anchor(self) -> None:
        """Begin anew from where the last step came to."""
        self.x, self.y, self.pull = self.at_x.copy(), self.at_y.copy(), self.at_pull.copy()
        self.from_x, self.from_y, self.from_pull = self.x.copy(), self.y.copy(), self.pull.copy()
        self.since, self.first, self.last = 0, math.inf, math.inf

    def go_on(self) -> None:
        """Make 40 steps, look at the bound, and restart where that helps."""
        if not self.since:
            self.first = self._steps(1)
        length = self._steps(_STEPS - 1)
        self.num_steps += _STEPS
        proven = self._proven()
        if proven > self.best:
            self.best, self.best_y = proven, self.at_y.copy()
        shorter = length < _NECESSARY * self.first and length > self.last
        if length < _SUFFICIENT * self.first or shorter or self.since > _LONG * self.num_steps:
            moved = (
                float(np.linalg.norm(self.at_x - self.from_x)),
                float(np.linalg.norm(self.at_y - self.from_y)),
            )
            if min(moved) > 1e-10:
                self.weight = math.sqrt(self.weight * moved[1] / moved[0])
            self._anchor()
        else:
            self.last = length

    def _steps(self, num: int) -> float:
        """The length of the last of `num` steps."""
        tau, sigma = self.step / self.weight, self.step * self.weight
        squared = _steps(
            num,
            self.since,
            (self.triples, self.others),
            (self.most, self.cost, self.lb, self.ub, self.row_scale, self.column_scale),
            (self.x, self.y, self.pull),
            (self.from_x, self.from_y, self.from_pull),
            (self.at_x, self.at_y, self.at_pull),
            (tau, sigma),
        )
        self.since += num
        return math.sqrt(max(0.0, squared))

    def _proven(self) -> float:
        reduced = self.cost + self.at_pull
        least = np.minimum(reduced * self.lb, reduced * self.ub).sum()
        return float(least - self.most @ self.at_y) + self.fixed_cost

    def is_close(self) -> bool:
        """Whether the point nearly meets the rows, and costs nearly what is proven."""
        over = np.maximum(self.matrix @ self.at_x - self.most, 0.0)
        cost = float(self.cost @ self.at_x) + self.fixed_cost
        near = float(np.linalg.norm(over)) <= 1e-4 * (1.0 + float(np.linalg.norm(self.most)))
        return near and abs(cost - self.best) <= _CLOSE * abs(self.best) + 1e-9


def _are_triples(matrix: Any) -> NDArray[np.bool_]:
    """The rows with at most one 1, at most two -1, and nothing else; ``(rows,)``."""
    num_rows = matrix.shape[0]
    row = np.repeat(np.arange(num_rows), np.diff(matrix.indptr))
    ups = np.bincount(row[matrix.data == 1.0], minlength=num_rows)
    downs = np.bincount(row[matrix.data == -1.0], minlength=num_rows)
    found: NDArray[np.bool_] = (ups <= 1) & (downs <= 2)
    found &= ups + downs == np.diff(matrix.indptr)
    return found


def _triples(matrix: Any) -> Triples:
    """The columns of 1, of -1 and of -1 of each of the first rows, ``(rows, 3)``.

    The number of columns stands for none. Nearly all rows of cuts are such: without their values,
    and without loops over their columns, a step takes half of the time.
    """
    count = int(np.count_nonzero(_are_triples(matrix)))
    found = np.full((count, 3), matrix.shape[1], np.uint32)
    end = matrix.indptr[count]
    row = np.repeat(np.arange(count), np.diff(matrix.indptr[: count + 1]))
    column, up = matrix.indices[:end], matrix.data[:end] > 0
    found[row[up], 0] = column[up]
    row, column = row[~up], column[~up]
    second = np.zeros(row.size, dtype=np.int64)
    second[1:] = row[1:] == row[:-1]
    found[row, 1 + second] = column
    return found


def _others(matrix: Any) -> Others:
    """The rows behind the triples, by CSR."""
    rest = matrix[int(np.count_nonzero(_are_triples(matrix))) :]
    return rest.indptr.astype(np.int32), rest.indices.astype(np.int32), rest.data


@njit(cache=True)
def _steps(
    num: int,
    since: int,
    rows: tuple[Triples, Others],
    program: tuple[Floats, Floats, Floats, Floats, Floats, Floats],
    now: tuple[Floats, Floats, Floats],
    anchor: tuple[Floats, Floats, Floats],
    at: tuple[Floats, Floats, Floats],
    lengths: tuple[float, float],
) -> float:
    """Make `num` steps in place; the square of the length of the last one, in the method's norm.

    A row's price pulls at the row's columns as soon as it is known, while the indices are at hand;
    rows without a price, about half of them, pull at none.
    """
    triples, (other_start, other_column, other_value) = rows
    tau, sigma = lengths
    most, cost, lb, ub, row_scale, column_scale = program
    x, y, pull = now
    x0, y0, pull0 = anchor
    at_x, at_y, at_pull = at
    num_triples, none = triples.shape[0], x.size
    ahead, sums = np.zeros(none + 1), np.zeros(none + 1)  # with a column that stands for none
    squared = 0.0
    for step in range(num):
        towards = (since + step + 1.0) / (since + step + 2.0)
        for j in range(x.size):
            moved = min(max(x[j] - tau * (cost[j] + pull[j]), lb[j]), ub[j])
            at_x[j] = moved
            ahead[j] = (2.0 * moved - x[j]) * column_scale[j]
        sums[:] = 0.0
        for i in range(num_triples):
            up, down, other = triples[i, 0], triples[i, 1], triples[i, 2]
            total = row_scale[i] * (ahead[up] - ahead[down] - ahead[other])
            price = max(0.0, y[i] + sigma * (total - most[i]))
            at_y[i] = price
            if price > 0.0:
                price *= row_scale[i]
                sums[up] += price
                sums[down] -= price
                sums[other] -= price
        for i in range(num_triples, y.size):
            low, high = other_start[i - num_triples], other_start[i - num_triples + 1]
            total = 0.0
            for k in range(low, high):
                total += other_value[k] * ahead[other_column[k]]
            price = max(0.0, y[i] + sigma * (row_scale[i] * total - most[i]))
            at_y[i] = price
            if price > 0.0:
                price *= row_scale[i]
                for k in range(low, high):
                    sums[other_column[k]] += price * other_value[k]
        for j in range(none):
            at_pull[j] = sums[j] * column_scale[j]
        if step == num - 1:
            for j in range(x.size):
                change = at_x[j] - x[j]
                squared += change * change / tau - 2.0 * change * (at_pull[j] - pull[j])
            for i in range(y.size):
                squared += (at_y[i] - y[i]) ** 2 / sigma
        for j in range(x.size):
            x[j] = towards * (2.0 * at_x[j] - x[j]) + (1.0 - towards) * x0[j]
            pull[j] = towards * (2.0 * at_pull[j] - pull[j]) + (1.0 - towards) * pull0[j]
        for i in range(y.size):
            y[i] = towards * (2.0 * at_y[i] - y[i]) + (1.0 - towards) * y0[i]
    return squared

"""Branch and bound over cuts that keeps its proof: the multipliers of every leaf, as decimals.

Each leaf's linear program is solved in floats; its dual values are rounded to few digits. By weak
duality any multipliers, zero or more, prove a bound, so that rounding can only make it lower: the
bound of a leaf is computed from the rounded ones, in whole numbers.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedsim.plans.effort import Effort

from .cut_rows import CutRows

# Numbers of digits that are tried for a multiplier, fewest first.
_DIGITS = (3, 6, 9, 12, 17)
# The work of a linear program: the non-zeros that HiGHS solves in a second, and the least work.
_NONZEROS_PER_UNIT = 150_000.0
_LEAST_WORK = 0.02


@dataclass
class _Node:
    """A leaf of the tree, which may become an inner node."""

    bound: float  # units, rounded up; infinite where the leaf is empty
    proof: dict[str, Any]
    fixed: dict[int, int]
    split: int | None  # the variable to branch on; None where its optimum is whole


class BranchTree:
    """A tree whose leaves together prove `bound` units.

    Parameters
    ----------
    rows
        The MILP.
    target
        Units at which the search stops, because a schedule that costs as much is known.
    effort
        The effort, counted in linear programs by their non-zeros.
    max_leaves
        Number of leaves at which the search stops, because a certificate must stay short.
    """

    def __init__(self, rows: CutRows, target: float, effort: Effort, max_leaves: int) -> None:
        self.rows = rows
        # Whole costs whose sum is at most a million are taken as they are; larger ones are scaled
        # down.
        self._unit = max(1.0, sum(rows.cost) / 1e6)
        self._slack = 0.0 if self._unit == 1.0 else 1e-9
        self._cost = np.array(rows.cost, np.float64) / self._unit
        target *= 1 - self._slack
        self._shares = np.zeros(len(rows.cost))
        for k, row in enumerate(rows.rows):
            if rows.rights[k] < 0:
                for column, value in row.items():
                    self._shares[column] = abs(value) / rows.scales[k]
        self._matrix = _matrix(rows)
        self._rights = np.array(rows.rights, np.float64) / rows.scales
        self._work = max(_LEAST_WORK, self._matrix.nnz / _NONZEROS_PER_UNIT)
        root = self._solve({})
        heap = [(root.bound, 0, root)]
        leaves = count = 1
        while heap and heap[0][0] < target and leaves < max_leaves and effort.allows(self._work):
            bound, _, node = heap[0]
            if node.split is None:
                break
            heapq.heappop(heap)
            branch: dict[str, Any] = {"branch": node.split}
            for value, side in ((0, "down"), (1, "up")):
                effort.spend(self._work)
                child = self._solve({**node.fixed, node.split: value})
                child.bound = max(child.bound, bound)
                branch[side] = child.proof
                count += 1
                if math.isfinite(child.bound):
                    heapq.heappush(heap, (child.bound, count, child))
            leaves += 1
            node.proof.clear()
            node.proof.update(branch)
        self.num_leaves = leaves
        self.document = root.proof
        self.bound = tree_bound(rows, root.proof)

    def _solve(self, fixed: dict[int, int]) -> _Node:
        """The linear program with some variables fixed, and what its dual values prove."""
        from scipy.optimize import linprog

        low, high = _bounds(self.rows, fixed)
        bounds = np.column_stack([low, high])
        result = linprog(
            self._cost, A_ub=-self._matrix, b_ub=-self._rights, bounds=bounds, method="highs"
        )
        if result.status == 2:
            return self._empty(fixed, bounds)
        if result.x is None:
            return _Node(0, {"y": []}, fixed, None)
        duals = -result.ineqlin.marginals / self.rows.scales * self._unit
        wanted = (
            math.ceil(result.fun - 1e-6 * max(1.0, result.fun))
            if not self._slack
            else (result.fun * self._unit * (1 - self._slack))
        )
        bound = 0.0
        leaf: dict[str, Any] = {"y": []}
        for digits in _DIGITS:
            found = _rounded(duals, digits)
            proven = leaf_bound(self.rows, found, low, high)
            if proven > bound or not leaf["y"]:
                bound, leaf = proven, {"y": found}
            if bound >= wanted:
                break
        return _Node(bound, leaf, fixed, self._fractional(result.x))

    def _empty(self, fixed: dict[int, int], bounds: NDArray[Any]) -> _Node:
        """Multipliers that prove a leaf empty: dual values of the least violation of its rows."""
        from scipy.optimize import linprog
        from scipy.sparse import eye_array, hstack

        count = len(self.rows.rows)
        matrix = hstack([-self._matrix, -eye_array(count)]).tocsr()
        cost = np.concatenate([np.zeros(self._cost.size), np.ones(count)])
        slack = np.column_stack([np.zeros(count), np.full(count, np.inf)])
        result = linprog(
            cost,
            A_ub=matrix,
            b_ub=-self._rights,
            bounds=np.vstack([bounds, slack]),
            method="highs",
        )
        low, high = _bounds(self.rows, fixed)
        if result.x is not None:
            for digits in _DIGITS:
                found = _rounded(-result.ineqlin.marginals / self.rows.scales, digits)
                if leaf_bound(self.rows, found, low, high, ray=True) > 0:
                    return _Node(math.inf, {"y": found, "empty": True}, fixed, None)
        return _Node(0, {"y": []}, fixed, None)

    def _fractional(self, x: NDArray[np.float64]) -> int | None:
        """The variable to branch on: of those far from whole, the one of most bytes."""
        distance = np.minimum(x, 1 - x)
        if distance.max() < 1e-6:
            return None
        return int(np.argmax(np.where(distance < 1e-6, 0, distance * (0.05 + self._shares))))


def _matrix(rows: CutRows) -> Any:
    from scipy.sparse import csr_array

    place = np.repeat(np.arange(len(rows.rows)), [len(row) for row in rows.rows])
    column = np.array([c for row in rows.rows for c in row], np.int64)
    value = np.array([v for row in rows.rows for v in row.values()], np.float64)
    shape = (len(rows.rows), len(rows.cost))
    return csr_array((value / rows.scales[place], (place, column)), shape=shape)


def _bounds(rows: CutRows, fixed: dict[int, int]) -> tuple[list[int], list[int]]:
    low, high = list(rows.low), list(rows.high)
    for column, value in fixed.items():
        low[column] = high[column] = value
    return low, high


def _rounded(duals: NDArray[np.float64], digits: int) -> list[list[int | str]]:
    """The dual values above zero, as decimals of so many digits."""
    least = 10.0**-digits * float(np.max(np.abs(duals), initial=0.0)) * 1e-3
    some = np.flatnonzero(duals > least)
    return [[int(row), f"{duals[row]:.{digits}g}"] for row in some]


def leaf_bound(
    rows: CutRows,
    multipliers: list[list[int | str]],
    low: list[int],
    high: list[int],
    *,
    ray: bool = False,
) -> int:
    """A bound in units, rounded up, on every point between `low` and `high`, by weak duality.

    With `ray`, costs count as zero: where the result is then positive, there is no point at all.
    """
    weights = [(int(row), Fraction(value)) for row, value in multipliers]
    common = math.lcm(1, *(value.denominator for _, value in weights))
    total = 0
    left = {} if ray else {c: cost * common for c, cost in enumerate(rows.cost) if cost}
    for row, value in weights:
        weight = int(value * common)
        total += weight * rows.rights[row]
        for column, coefficient in rows.rows[row].items():
            left[column] = left.get(column, 0) - weight * coefficient
    for column, cost in left.items():
        total += cost * (low[column] if cost > 0 else high[column])
    return -(-total // common)


def tree_bound(rows: CutRows, root: dict[str, Any]) -> float:
    """The bound that all leaves prove together, in units; infinite where all are empty."""
    low, high = list(rows.low), list(rows.high)

    def below(node: dict[str, Any]) -> float:
        if "branch" not in node:
            if node.get("empty"):
                return math.inf
            return max(0, leaf_bound(rows, node["y"], low, high))
        column = node["branch"]
        least = math.inf
        for value, side in ((0, "down"), (1, "up")):
            low[column] = high[column] = value
            least = min(least, below(node[side]))
            low[column], high[column] = 0, 1
        return least

    return below(root)

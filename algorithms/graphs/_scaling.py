"""Numbers in ranges that solvers accept, and bounds made safe against solvers' tolerances."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Up to this sum, times in whole units are given to a solver unchanged.
_WHOLE_SUM = 10**6
# Solvers stop within 1e-6 of an optimum, and meet constraints to 1e-6; ten times that is safe.
_TOLERANCE = 1e-5
# Times with a sum below this, in seconds, count as zero: a unit of them would underflow.
_LEAST_SUM_S = 1e-280


@dataclass(frozen=True, slots=True)
class SolverTimes:
    """Times of ops in units for a solver.

    Attributes
    ----------
    costs : (num_ops,) float64
        Times in units of `unit_s`: whole numbers where `whole`, otherwise scaled to a sum of a
        million, beside which the absolute tolerances of solvers are small.
    unit_s : float
        Seconds per unit.
    whole : bool
        Whether every sum of costs is a whole number.
    """

    costs: NDArray[np.float64]
    unit_s: float
    whole: bool

    def bound_s(self, solver_bound: float | None) -> float:
        """A solver's lower bound on a sum of costs, in seconds, rounded safely; at least 0."""
        if solver_bound is None or not solver_bound > 0:  # NaN included
            return 0.0
        safe = solver_bound - _TOLERANCE
        if self.whole:
            safe = math.ceil(safe)
        return max(0.0, safe * self.unit_s)


def solver_times(times_s: NDArray[np.float64]) -> SolverTimes:
    """`times_s` in their greatest common unit if there is one, else in millionths of the sum."""
    total = math.fsum(times_s.tolist())
    if total < _LEAST_SUM_S:
        return SolverTimes(np.zeros(times_s.size), 1.0, True)
    if total < 2.0**52 and np.all(times_s == np.floor(times_s)):
        divisor = int(np.gcd.reduce(times_s.astype(np.int64)))
        if total / divisor <= _WHOLE_SUM:
            return SolverTimes(times_s / divisor, float(divisor), True)
    unit_s = total / _WHOLE_SUM
    return SolverTimes(times_s / unit_s, unit_s, False)


def byte_divisor(sizes_bytes: Iterable[int]) -> int:
    """The greatest common divisor of `sizes_bytes`; 1 where all are zero.

    Dividing all sizes by it, and the budget with rounding down, changes no solution.
    """
    return math.gcd(*sizes_bytes) or 1


def whole_costs(times_s: NDArray[np.float64]) -> tuple[list[int], float]:
    """(times in whole units, seconds per unit); times without a common unit are rounded down.

    A bound on a sum of them is a bound in seconds; the rounding loses a share of 1e-15.
    """
    total = math.fsum(times_s.tolist())
    if total < _LEAST_SUM_S:
        return [0] * times_s.size, 1.0
    if total < 2.0**52 and np.all(times_s == np.floor(times_s)):
        divisor = int(np.gcd.reduce(times_s.astype(np.int64)))
        return (times_s.astype(np.int64) // divisor).tolist(), float(divisor)
    unit_s = total / 2.0**50
    return np.floor(times_s / unit_s).astype(np.int64).tolist(), unit_s


def byte_units(sizes_bytes: NDArray[np.int64], budget_bytes: int) -> tuple[float, bool]:
    """(bytes per unit, whether all sizes are whole) for solvers that compute in floats.

    The unit is the common divisor where the budget then is a number small beside the solver's
    tolerance, so that the tolerance cannot let one byte too many pass; otherwise it is a
    ten-thousandth of the budget.
    """
    divisor = byte_divisor(sizes_bytes.tolist())
    if budget_bytes / divisor <= 1e5:
        return float(divisor), True
    return max(1.0, budget_bytes / 1e4), False

"""The MILP over cuts in whole numbers, with variables and rows in the order of certificates.

It is the MILP of ``graphs/_cut_model.py`` without memory beside repeated runs, with one sum over
neighbours for each longer interval, and with every number exact. ``docs/certificates.md`` numbers
variables and rows; ``benchmarks/rematlib/check.py`` builds them again from that description,
without this file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from schedsim.dataflow.graph import Graph

from ..graphs._cut_model import longer_intervals
from ..graphs._cut_table import Bools, Cut, CutTable

Row = dict[int, int]


@dataclass
class CutRows:
    """min cost x over whole x between `low` and `high` with ``row x >= right`` for each row.

    Attributes
    ----------
    unit_s
        Seconds of one unit of cost; every sum of repeated runs is a multiple of it.
    scales
        The number that each row is divided by for a solver that computes in floats.
    """

    cost: list[int] = field(default_factory=list)
    low: list[int] = field(default_factory=list)
    high: list[int] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    rights: list[int] = field(default_factory=list)
    unit_s: Fraction = Fraction(1)

    def add(self, row: Row, right: int) -> None:
        """Add a row."""
        self.rows.append(row)
        self.rights.append(right)

    @cached_property
    def scales(self) -> NDArray[np.float64]:
        """The largest coefficient of each row."""
        return np.array([max(map(abs, row.values()), default=1) for row in self.rows], np.float64)


def cut_rows(table: CutTable, cuts: list[Cut], *, doubling: bool = False) -> CutRows:
    """The MILP for `cuts` in the order of their first runs; O(intervals (ops + tensors + reads)).

    With `doubling`, intervals of 2, 4, 8, ... cuts are added.
    """
    graph, arrays = table.graph, table.graph.arrays
    num_ops, num_tensors, num_cuts = table.num_ops, table.num_tensors, len(cuts)
    producer = arrays.tensor_producer
    prices, unit_s = whole_prices(graph)
    made = CutRows(unit_s=unit_s)
    known: list[Bools] = []
    for cut in cuts:
        ran = cut.before.copy()
        ran[cut.op] = True
        known.append(ran)
        there = (producer < 0) | ran[producer]
        made.low += cut.given.astype(int).tolist()
        made.high += (cut.given | there).astype(int).tolist()
        made.cost += [0] * num_tensors
    intervals = [(k, k + 1) for k in range(num_cuts)]
    intervals += longer_intervals(num_cuts, doubling=doubling)
    for place, (k, _) in enumerate(intervals):
        made.low += [0] * num_ops
        made.high += (known[k] & ~arrays.op_once).astype(int).tolist()
        made.cost += prices if place < num_cuts else [0] * num_ops
    for k, cut in enumerate(cuts):
        charged = np.flatnonzero(cut.charged_bytes).tolist()
        column = k * num_tensors
        row = {column + t: -int(cut.charged_bytes[t]) for t in charged if made.high[column + t]}
        made.add(row, -int(cut.room_bytes))
    for place, (k, end) in enumerate(intervals):
        first = num_cuts * num_tensors + place * num_ops
        _add_interval(made, table, cuts, known, k, end, first)
    first = num_cuts * num_tensors
    for place, (k, end) in list(enumerate(intervals))[num_cuts:]:
        for op in np.flatnonzero(known[k]).tolist():
            row = {first + j * num_ops + op: 1 for j in range(k, end)}
            row[first + place * num_ops + op] = -1
            made.add(row, 0)
    return made


def _add_interval(
    made: CutRows,
    table: CutTable,
    cuts: list[Cut],
    known: list[Bools],
    k: int,
    end: int,
    first: int,
) -> None:
    """Rows between the cuts `k` and `end`: what is read there was alive before or is recomputed."""
    arrays, num_tensors = table.graph.arrays, table.num_tensors
    producer = arrays.tensor_producer
    remade = np.flatnonzero((producer >= 0) & known[k][producer]).tolist()
    if end < len(cuts):
        surely = np.zeros(num_tensors, dtype=np.bool_)
        surely[arrays.read_tensor[(cuts[k].after & known[end])[table.readers]]] = True
    else:
        surely = table.needed(cuts[k].after)
    alive = k * num_tensors
    for t in remade:
        if surely[t]:
            made.add({alive + t: 1, first + int(producer[t]): 1}, 1)
    for op in np.flatnonzero(known[k]).tolist():
        for t in arrays.read_tensor[arrays.read_start[op] : arrays.read_start[op + 1]].tolist():
            if producer[t] >= 0:
                made.add({first + op: -1, alive + t: 1, first + int(producer[t]): 1}, 0)
    if end < len(cuts):
        for t in remade:
            row = {end * num_tensors + t: -1, alive + t: 1, first + int(producer[t]): 1}
            made.add(row, 0)


def whole_prices(graph: Graph) -> tuple[list[int], Fraction]:
    """(cost of a repeat of each op in units, seconds of a unit); the cost is 0 for ``once`` ops.

    A unit is the greatest common divisor of the times of ops that may repeat.
    """
    times = [Fraction(op.time_s) for op in graph.ops if not op.once]
    scale = math.lcm(1, *(time.denominator for time in times))
    divisor = math.gcd(*(int(time * scale) for time in times)) or 1
    prices = [0 if op.once else int(Fraction(op.time_s) * scale) // divisor for op in graph.ops]
    return prices, Fraction(divisor, scale)

"""Several cuts of a step in one mixed-integer linear program (MILP): a bound on recomputation.

For the cuts t_0, t_1, ..., t_{K-1} in the order of their first runs, with t_K the end:

- ``alive[k, w]``: tensor w is alive during the first run of t_k;
- ``again[k, l, p]``: op p, which ran before, runs again between the first runs of t_k and of t_l.

Every schedule gives such numbers, so that the least cost of the MILP is a lower bound:

1. a tensor read by a first run between the two cuts was alive at the first cut or is recomputed
   between them: ``alive[k, w] + again[k, l, producer(w)] >= 1``;
2. a repeated run reads too: ``again[k, l, p] <= alive[k, u] + again[k, l, producer(u)]``;
3. a tensor alive at the second cut was alive at the first or is written between them;
4. the tensors alive at a cut fit beside the run of its op;
5. a repeated run between two cuts is one on this or on that side of a cut between them, down to
   neighbours: ``again[k, l, p] <= again[k, m, p] + again[m, l, p]``;
6. where asked for: a tensor alive at the second of two neighbouring cuts, written before the first
   and not again between them, is alive all the time between them, and so beside a run that is
   repeated there: ``through[k, w] >= alive[k + 1, w] - again[k, k + 1, producer(w)]``.

In whole numbers the pairs (k, K) are implied by the pairs of neighbours, but not in fractions:
without them a repeated run is split over the intervals, each part living on the same half of a
tensor. Where memory is tight, runs are repeated for what is read soon, and pairs that lie 2, 4, 8,
... cuts apart close most of the rest: on chains they prove what all pairs do, and what a flow for
each read does, within 2 % of it.

Only what a later op may need, itself or through what it reads, is alive or runs again: dropping
the rest keeps all rules.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence

import numpy as np

from ._cut_labels import AGAIN, ALIVE, INPUT, KEPT, NEED, PART, ROOM, CutLabels
from ._cut_table import Bools, Cut, CutTable
from ._milp import Floats, Ints, Milp
from ._scaling import byte_units


def cut_milp(
    table: CutTable,
    cuts: list[Cut],
    costs: Floats,
    *,
    beside: Sequence[tuple[int, int]] = (),
    at_least: float = 0.0,
    doubling: bool = False,
    longer: Sequence[tuple[int, int]] | None = None,
) -> tuple[Milp, list[Ints]]:
    """The MILP for `cuts`, ordered by their first runs; `costs` of a run per op.

    The second result holds, for each cut, the indices of ``alive[k, 0]`` ...
    ``alive[k, num_tensors - 1]``.

    Parameters
    ----------
    beside
        Pairs (k, op): memory is looked at beside a repeated run of the op between the cuts k and
        k + 1.
    at_least
        A bound that is already known: what the repeated runs cost less than that is paid besides,
        so that the solver looks for nothing below. It is no rule for the runs themselves, because
        these cuts may count fewer than there are.
    doubling
        Whether pairs that lie 2, 4, 8, ... cuts apart are added to neighbours and pairs (k, K).

    The memory of cut k is limited by row k. O(intervals (ops + tensors + reads)) variables, rows
    and non-zeros.
    """
    arrays = table.graph.arrays
    num_ops, num_cuts = table.num_ops, len(cuts)
    producer = arrays.tensor_producer
    made = producer >= 0
    milp = Milp()
    labels = cut_labels(table)
    ops, every = [cut.op for cut in cuts] + [num_ops], np.arange(num_ops)
    byte_unit, whole = byte_units(arrays.tensor_bytes, table.budget_bytes)
    known: list[Bools] = []
    alive: list[Ints] = []
    repeats: list[Bools] = []
    for cut in cuts:
        ran = cut.before.copy()
        ran[cut.op] = True
        known.append(ran)
        useful, makers = table.useful(ran)
        repeats.append(makers & ~arrays.op_once)
        there = useful & (~made | ran[producer])
        column = milp.variables(
            producer.size,
            lb=cut.given,
            ub=cut.given | there,
            integral=True,
            labels=labels.of(ALIVE, cut.op, cut.op, np.arange(producer.size)),
        )
        alive.append(column)
        charged = np.flatnonzero(there & (cut.charged_bytes != 0))
        milp.placed(
            1,
            (0, column[charged], cut.charged_bytes[charged] / byte_unit),
            lb=-np.inf,
            ub=math.floor(cut.room_bytes / byte_unit) if whole else cut.room_bytes / byte_unit,
            labels=labels.of(ROOM, cut.op, cut.op, [0]),
        )
    neighbours: list[Ints] = []
    for k in range(num_cuts):
        marks = labels.of(AGAIN, ops[k], ops[k + 1], every)
        again = milp.variables(num_ops, ub=repeats[k], cost=costs, integral=True, labels=marks)
        neighbours.append(again)
        _add_interval(milp, table, cuts, known, alive, k, k + 1, again)
    between = {(k, k + 1): again for k, again in enumerate(neighbours)}
    if longer is None:
        longer = longer_intervals(num_cuts, doubling=doubling)
    for k, end in longer:
        marks = labels.of(AGAIN, ops[k], ops[end], every)
        between[k, end] = milp.variables(num_ops, ub=repeats[k], integral=True, labels=marks)
    for (k, end), again in list(between.items())[num_cuts:]:
        ran_ops = np.flatnonzero(repeats[k])
        parts = [(between[part][ran_ops], -1.0) for part in parts_of(k, end, between)]
        marks = labels.of(PART, ops[k], ops[end], ran_ops)
        milp.rows(ran_ops.size, (again[ran_ops], 1.0), *parts, labels=marks)
        _add_interval(milp, table, cuts, known, alive, k, end, again)
    for k in sorted({k for k, _ in beside}):
        repeated = [op for at, op in beside if at == k]
        _add_beside(milp, table, cuts, alive, k, neighbours[k], repeated, byte_unit)
    if at_least > 0:
        paid = np.flatnonzero(costs)
        besides = milp.variables(1, ub=at_least, cost=1.0)
        terms = [(0, again[paid], costs[paid]) for again in neighbours]
        milp.placed(1, (0, besides, 1.0), *terms, lb=at_least, ub=np.inf)
    return milp, alive


def cut_labels(table: CutTable) -> CutLabels:
    """What labels the programs of this table."""
    most = max(table.num_tensors, table.num_ops, table.readers.size) + 1
    return CutLabels(table.num_ops, most)


def longer_intervals(num_cuts: int, *, doubling: bool) -> list[tuple[int, int]]:
    """Pairs of cuts that are no neighbours, of which the program looks at what is between them."""
    found = [(k, num_cuts) for k in range(num_cuts - 1)]
    length = 2
    while doubling and length < num_cuts:
        found += [(k, k + length) for k in range(num_cuts - length)]
        length *= 2
    return found


def parts_of(k: int, end: int, known: Container[tuple[int, int]]) -> list[tuple[int, int]]:
    """Intervals of `known` that lie end to end from `k` to `end`, and are few; two if possible."""
    halves = [m for m in range(k + 1, end) if (k, m) in known and (m, end) in known]
    if halves:
        middle = min(halves, key=lambda m: abs(k + end - 2 * m))
        return [(k, middle), (middle, end)]
    parts: list[tuple[int, int]] = []
    while k < end:
        far = max(m for m in range(k + 1, end + (len(parts) > 0)) if (k, m) in known)
        parts.append((k, far))
        k = far
    return parts


def _add_interval(
    milp: Milp,
    table: CutTable,
    cuts: list[Cut],
    known: list[Bools],
    alive: list[Ints],
    k: int,
    end: int,
    again: Ints,
) -> None:
    """Rules 1 to 3 for the repeated runs between the cuts `k` and `end`."""
    arrays = table.graph.arrays
    producer = arrays.tensor_producer
    remade = (producer >= 0) & known[k][producer]
    if end < len(cuts):
        surely = np.zeros(table.num_tensors, dtype=np.bool_)
        surely[arrays.read_tensor[(cuts[k].after & known[end])[table.readers]]] = True
    else:
        surely = table.needed(cuts[k].after)
    labels = cut_labels(table)
    span = cuts[k].op, cuts[end].op if end < len(cuts) else table.num_ops
    need = np.flatnonzero(surely & remade)
    milp.rows(
        need.size,
        (alive[k][need], 1.0),
        (again[producer[need]], 1.0),
        lb=1.0,
        ub=np.inf,
        labels=labels.of(NEED, *span, need),
    )

    edges = np.flatnonzero(known[k][table.readers] & (producer[arrays.read_tensor] >= 0))
    reader, read = table.readers[edges], arrays.read_tensor[edges]
    milp.rows(
        edges.size,
        (again[reader], 1.0),
        (alive[k][read], -1.0),
        (again[producer[read]], -1.0),
        labels=labels.of(INPUT, *span, edges),
    )
    if end < len(cuts):
        kept = np.flatnonzero(remade)
        milp.rows(
            kept.size,
            (alive[end][kept], 1.0),
            (alive[k][kept], -1.0),
            (again[producer[kept]], -1.0),
            labels=labels.of(KEPT, *span, kept),
        )


def _add_beside(
    milp: Milp,
    table: CutTable,
    cuts: list[Cut],
    alive: list[Ints],
    k: int,
    again: Ints,
    ops: list[int],
    byte_unit: float,
) -> None:
    """Rule 6 for the repeated runs of `ops` between the cuts `k` and `k` + 1."""
    arrays = table.graph.arrays
    producer = arrays.tensor_producer
    known = cuts[k].before | (np.arange(table.num_ops) == cuts[k].op)
    made = np.flatnonzero((producer >= 0) & known[producer])
    through = np.full(producer.size, -1, dtype=np.int64)
    through[made] = milp.variables(made.size)
    milp.rows(
        made.size,
        (alive[k + 1][made], 1.0),
        (again[producer[made]], -1.0),
        (through[made], -1.0),
    )
    later = cuts[k + 1].after.copy()
    later[cuts[k + 1].op] = True
    held = table.needed(later) & (producer < 0)
    for op in ops:
        own = np.zeros(producer.size, dtype=np.bool_)
        own[arrays.read_tensor[arrays.read_start[op] : arrays.read_start[op + 1]]] = True
        own[arrays.write_tensor[arrays.write_start[op] : arrays.write_start[op + 1]]] = True
        room = int(table.rooms_bytes[op])
        room -= int(arrays.tensor_bytes[held & ~own].sum())
        others = made[~own[made]]
        sizes = arrays.tensor_bytes[others]
        # Without the repeated run, the row constrains nothing.
        slack = max(0, int(sizes.sum()) - room)
        milp.placed(
            1,
            (0, through[others], sizes / byte_unit),
            (0, again[[op]], slack / byte_unit),
            lb=-np.inf,
            ub=(room + slack) / byte_unit,
        )

"""Retention intervals as a constraint program: when runs start, and how long their outputs live.

Every op has up to C runs, of which the first is always active. Every run has one interval for each
output, from the run's start to the output's last reader. Memory is one `cumulative` constraint over
these intervals. A run that reads a tensor is linked to one active interval of it that contains the
start of the run.

In the fixed order, time is a grid of stages with one place for each op: run c of op i stands at
place i of its stage, and the first run at place i of stage i. In free order every run has a place
of its own among C times the number of ops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from schedsim.dataflow.graph import Graph
from schedsim.errors import MissingDependencyError

from ._cut_table import Order


def load_cp_model() -> Any:
    """Import OR-Tools' CP-SAT.

    Raises
    ------
    MissingDependencyError
        OR-Tools is not installed.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise MissingDependencyError(
            "moccasin needs OR-Tools, which is not installed", hint="pip install schedsim[cp]"
        ) from error
    return cp_model


class RetentionModel:
    """The model and its variables.

    Parameters
    ----------
    sizes, workspaces, saving_workspaces
        Sizes in byte units: one for each tensor, the workspaces one for each op.
    room
        Budget less static bytes, in byte units.
    costs
        Time of a run of each op, in whole units.
    num_intervals
        C, the most runs of an op; at least 1.

    Attributes
    ----------
    starts : list of list
        Place of each run of each op: a number or a linear expression.
    active : list of list
        Whether that run is active: ``True`` or a literal.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        sizes: Sequence[int],
        workspaces: Sequence[int],
        saving_workspaces: Sequence[int],
        room: int,
        costs: Sequence[int],
        num_intervals: int,
        order: Order,
    ) -> None:
        self.cp = load_cp_model()
        self.model: Any = self.cp.CpModel()
        self.graph, self.order, self.sizes, self.costs = graph, order, sizes, costs
        arrays = graph.arrays
        self.num_ops = graph.num_ops
        self.reads = _lists(arrays.read_start, arrays.read_tensor)
        self.writes = _lists(arrays.write_start, arrays.write_tensor)
        self.producer = arrays.tensor_producer.tolist()
        self.optional = arrays.tensor_optional.tolist()
        self.result = arrays.tensor_result.tolist()
        self.takes_over = arrays.tensor_takes_over.tolist()
        self.intervals: list[Any] = []
        self.demands: list[int] = []
        # A resource takes no negative demand: all are raised, and the room for them.
        self.lift = max(0, -min(workspaces, default=0))
        self.num_runs = [1 if once else num_intervals for once in arrays.op_once.tolist()]
        remakes = any(self.result[t] and p >= 0 for t, p in enumerate(self.producer))
        self.num_stages = self.num_ops + remakes
        self.horizon = self.num_ops * self.num_stages if order == "fixed" else sum(self.num_runs)
        self.stage: list[list[Any]] = []
        self.starts: list[list[Any]] = []
        self.active: list[list[Any]] = []
        self.ends: dict[tuple[int, int], Any] = {}
        self.present: dict[tuple[int, int], Any] = {}
        self.links: dict[tuple[int, int, int, int], Any] = {}
        self._add_runs()
        self._add_tensors()
        self._add_reads()
        self._add_workspaces(workspaces, saving_workspaces)
        self._add_retention()
        self.model.add_cumulative(self.intervals, self.demands, room + self.lift)
        self.extra = sum(
            self.costs[i] * self.active[i][c]
            for i in range(self.num_ops)
            for c in range(1, self.num_runs[i])
        )
        self.model.minimize(self.extra)

    def _add_runs(self) -> None:
        model, n = self.model, self.num_ops
        for i in range(n):
            active: list[Any] = [True]
            stage: list[Any] = [i]
            starts: list[Any] = [n * i + i]
            if self.order == "free":
                starts = [model.new_int_var(0, self.horizon - 1, f"start{i}")]
            for c in range(1, self.num_runs[i]):
                if self.order == "fixed" and i + c >= self.num_stages:
                    self.num_runs[i] = c
                    break
                literal = model.new_bool_var(f"active{i}.{c}")
                if self.order == "fixed":
                    stage.append(model.new_int_var(i + c, self.num_stages - 1, f"stage{i}.{c}"))
                    starts.append(n * stage[-1] + i)
                else:
                    starts.append(model.new_int_var(0, self.horizon - 1, f"start{i}.{c}"))
                if c > 1:
                    model.add_implication(literal, active[-1])
                model.add(starts[-1] > starts[-2]).only_enforce_if(literal)
                active.append(literal)
            self.active.append(active)
            self.stage.append(stage)
            self.starts.append(starts)
        if self.order == "free":
            model.add_no_overlap(
                [
                    self._interval(start, 1, start + 1, literal)
                    for starts, actives in zip(self.starts, self.active, strict=True)
                    for start, literal in zip(starts, actives, strict=True)
                ]
            )

    def _interval(self, start: Any, size: Any, end: Any, literal: Any) -> Any:
        if literal is True:
            return self.model.new_interval_var(start, size, end, "")
        return self.model.new_optional_interval_var(start, size, end, literal, "")

    def _if(self, constraint: Any, *literals: Any) -> None:
        real = [literal for literal in literals if literal is not True]
        constraint = self.model.add(constraint)
        if real:
            constraint.only_enforce_if(real)

    def _add_tensors(self) -> None:
        """Add the ends of the intervals, and whether an optional output is made at all."""
        model = self.model
        is_read = {t for reads in self.reads for t in reads}
        for t, p in enumerate(self.producer):
            if p < 0:
                if t in is_read or self.result[t]:
                    last = self.horizon - 1
                    self.ends[t, 0] = model.new_int_var(last if self.result[t] else 0, last, "")
                    self.present[t, 0] = True
                continue
            for c in range(self.num_runs[p]):
                literal = self.active[p][c]
                if self.optional[t]:
                    literal = model.new_bool_var(f"made{t}.{c}")
                    if c:
                        model.add_implication(literal, self.active[p][c])
                self.present[t, c] = literal
                end = model.new_int_var(0, self.horizon - 1, f"end{t}.{c}")
                self.ends[t, c] = end
                self._if(end >= self.starts[p][c], literal)
                if c + 1 < self.num_runs[p]:
                    self._if(end < self.starts[p][c + 1], literal, self.active[p][c + 1])
                if self.result[t]:
                    again = [self.active[p][c + 1]] if c + 1 < self.num_runs[p] else []
                    ifs = [self.active[p][c], *(literal.Not() for literal in again)]
                    self._if(end == self.horizon - 1, *ifs)
                    if self.optional[t]:
                        self._if(self.present[t, c] == 1, *ifs)

    def _add_reads(self) -> None:
        model = self.model
        readers: dict[tuple[int, int], list[Any]] = {}
        for i in range(self.num_ops):
            for d in range(self.num_runs[i]):
                for t in self.reads[i]:
                    p = self.producer[t]
                    if p < 0:
                        self._if(self.ends[t, 0] >= self.starts[i][d], self.active[i][d])
                        continue
                    choices = []
                    for c in range(self.num_runs[p]):
                        link = model.new_bool_var(f"read{i}.{d}.{t}.{c}")
                        choices.append(link)
                        self.links[i, d, t, c] = link
                        readers.setdefault((t, c), []).append(link)
                        if self.present[t, c] is not True:
                            model.add_implication(link, self.present[t, c])
                        self._if(self.starts[i][d] >= self.starts[p][c] + 1, link)
                        self._if(self.starts[i][d] <= self.ends[t, c], link)
                    model.add(sum(choices) == self.active[i][d])
        for (t, c), literal in self.present.items():
            if self.optional[t]:
                p = self.producer[t]
                kept = []
                if self.result[t]:
                    if c + 1 == self.num_runs[p]:
                        continue
                    kept = [self.active[p][c + 1].Not()]
                model.add_bool_or([*readers.get((t, c), []), *kept, literal.Not()])

    def _unit(self, op: int, run: int, literal: Any, demand: int) -> None:
        """Add `demand` bytes that are charged only while the run goes on."""
        if demand > 0:
            start = self.starts[op][run]
            self.intervals.append(self._interval(start, 1, start + 1, literal))
            self.demands.append(demand)

    def _add_workspaces(self, workspaces: Sequence[int], saving: Sequence[int]) -> None:
        model = self.model
        for i in range(self.num_ops):
            bundles = [t for t in self.writes[i] if self.optional[t]]
            less = min(workspaces[i], saving[i]) if bundles else workspaces[i]
            more = max(workspaces[i], saving[i]) if bundles else workspaces[i]
            for c in range(self.num_runs[i]):
                self._unit(i, c, self.active[i][c], less + self.lift)
                if more == less:
                    continue
                made = [self.present[t, c] for t in bundles]
                larger = model.new_bool_var("")
                if saving[i] > workspaces[i]:
                    for literal in made:
                        model.add_implication(literal, larger)
                else:
                    model.add(larger + sum(made) >= self.active[i][c])
                self._unit(i, c, larger, more - less)

    def _add_retention(self) -> None:
        """Add the intervals; an output that takes over storage is charged less at first."""
        for (t, c), end in self.ends.items():
            size, literal, p = self.sizes[t], self.present[t, c], self.producer[t]
            start = self.starts[p][c] if p >= 0 else 0
            if size == 0:
                continue
            source = self.takes_over[t]
            shared = min(size, self.sizes[source]) if source >= 0 else 0
            if shared:
                self._unit(p, c, literal, size - shared)
                taken = self._taken(t, c, source)
                alone = self.model.new_bool_var("")
                self.model.add(alone >= literal - taken)
                self._unit(p, c, alone, shared)
                start = start + 1
            length = self.model.new_int_var(0, self.horizon, "")
            self.intervals.append(self._interval(start, length, end + 1, literal))
            self.demands.append(size)

    def _taken(self, t: int, c: int, source: int) -> Any:
        """A literal that may be true only where this run of the producer ends the source's life."""
        op = self.producer[t]
        taken = self.model.new_bool_var("")
        if self.present[t, c] is not True:
            self.model.add_implication(taken, self.present[t, c])
        if self.producer[source] < 0:
            self._if(self.ends[source, 0] <= self.starts[op][c], taken)
        else:
            for k in range(self.num_runs[self.producer[source]]):
                link = self.links[op, c, source, k]
                self._if(self.ends[source, k] <= self.starts[op][c], taken, link)
        return taken

    def hint(self, runs: Sequence[int]) -> None:
        """Start the search near an op sequence; what the model cannot express is left out."""
        seen = [0] * self.num_ops
        num_first = 0
        for place, op in enumerate(runs):
            c = seen[op]
            seen[op] += 1
            if self.order == "free":
                if c < self.num_runs[op] and place < self.horizon:
                    self.model.add_hint(self.starts[op][c], place)
            elif c and c < self.num_runs[op]:
                self.model.add_hint(self.stage[op][c], num_first)
            num_first += c == 0
        for op in range(self.num_ops):
            for c in range(1, self.num_runs[op]):
                self.model.add_hint(self.active[op][c], seen[op] > c)

    def runs(self, value: Any) -> list[int]:
        """The op sequence of a solution; `value` evaluates an expression."""
        found = []
        for i in range(self.num_ops):
            for c in range(self.num_runs[i]):
                if self.active[i][c] is True or value(self.active[i][c]):
                    found.append((value(self.starts[i][c]), i))
        return [op for _, op in sorted(found)]


def _lists(start: Any, items: Any) -> list[list[int]]:
    return [part.tolist() for part in np.split(items, start[1:-1])]

"""Optimal persistent schedules of a chain: the recurrence, and what rotor and frontier share.

A schedule is persistent when a stored activation stays until its own backward. Let ``T(i, k, m)``
be the least time to run the forwards and backwards of stages ``i..k-1`` when ``a[i]``, the input of
stage i, is stored outside the ``m`` bytes left, and ``d[k]``, the gradient of the last stage's
output, inside of them unless ``k`` is the end of the chain. Then (Beaumont et al. 2019, section 4,
with our memory rule)::

    T(i, k, m) = min( F_i with one of its bundles, then T(i+1, k, m - saved_i), then B_i ;
                      F_i..F_{j-1} with nothing, then T(j, k, m - x_j), then T(i, j, m) )

subject to what the runs in between need: a saving forward ``saved_i + workspace + d[k]``, a plain
one ``x_l + x_{l+1} + workspace + d[k]`` (``x_i`` is outside), a backward
``saved_i + d[i+1] + d[i] + workspace``. The gradient alive during the forwards of a replay is
``d[k]``, that of the *end* of the sub-chain, and none before the loss.

A stage may have several bundles: its own, and its variants of the kinds that are allowed. As a
persistent schedule saves each stage once, the choice is the stage's (Zhao et al. 2023, section 3.3,
has such options per block).

Sub-chains that are equal, stage by stage and in their input, share one row of the table, so the
repeated layers of a transformer are solved once.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from schedsim.dataflow.chain import Chain, Stage
from schedsim.dataflow.variants import ChosenVariant, resolve, stage_options, with_variant
from schedsim.errors import PlannerLimitError
from schedsim.kernels.compiled import run
from schedsim.plans.least_budget import LeastBudget
from schedsim.plans.plan import Plan, make_plan
from schedsim.plans.scope import PERSISTENT, PERSISTENT_VARIANTS, Scope
from schedsim.plans.setting import Setting
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import simulate

from ._recurrence import (
    FREE,
    KEEP,
    RECOMPUTE,
    PackedChain,
    Table,
    find_classes,
    least_memory,
)
from ._recurrence_exact import DONE, TOO_MANY_POINTS, solve_exact
from ._recurrence_runs import list_runs
from ._recurrence_slots import solve_dense

MAX_STAGES = 4000
"""The most stages: beyond this the O(L^2) tables alone take gigabytes."""

_MOST = 2**62


class WorkLimitReached(PlannerLimitError):
    """The exact recurrence passed the limit on points or on work."""


class Problem:
    """A chain as the kernels read it.

    Parameters
    ----------
    chain
        At most `MAX_STAGES` stages.
    allow
        Kinds of variants that may be chosen.

    Attributes
    ----------
    outside_bytes : int
        Static bytes and the chain's input: resident throughout, and not counted in the recurrence.

    Notes
    -----
    Times are rounded to a grid of 2^-46 of the whole time (integers stay as they are), so that
    sums are exact and equal ways to the same time compare equal.
    """

    def __init__(self, chain: Chain, allow: Collection[str] = ()) -> None:
        if chain.num_stages > MAX_STAGES:
            raise PlannerLimitError(
                f"{chain.num_stages} stages are more than the {MAX_STAGES} of the exact recurrence",
                hint="use --planner periodic, revolve or bisection, or group stages",
            )
        self.chain = chain
        stages = chain.stages
        self.x = chain.activation_bytes()
        self.loss_ws, loss_s = chain.loss_workspace_bytes, chain.loss_s
        rule = [_rule(stage) for stage in stages]
        # The last stage may be one that must be recomputed. So the loss becomes a stage of its own,
        # without output: then every sub-chain that ends before the loss is one that runs again.
        self.loss_is_stage = RECOMPUTE in rule
        if self.loss_is_stage:
            stages = (*stages, Stage("loss", 0.0, loss_s, 0, 0, 0, self.loss_ws))
            self.x, rule = np.append(self.x, 0), [*rule, FREE]
            self.loss_ws, loss_s = 0, 0.0
        self.rule = np.array(rule, dtype=np.int32)
        self.forward_ws = np.array([s.forward_workspace_bytes for s in stages], dtype=np.int64)
        # The bundles of each stage, its own first; arrays below are by bundle.
        self.options = [stage_options(stage, allow) for stage in stages]
        bundles = [
            (stage, *(with_variant(stage, variant) for variant in options))
            for stage, options in zip(stages, self.options, strict=True)
        ]
        self.bundles = np.cumsum([0, *map(len, bundles)], dtype=np.int64)
        flat = [bundle for group in bundles for bundle in group]
        self.saved = np.array([s.saved_bytes for s in flat], dtype=np.int64)
        # A stage without residual keeps nothing that a saving run would materialise.
        saving = (
            s.forward_workspace_bytes
            if s.saving_workspace_bytes is None or s.saved_bytes == s.output_bytes
            else s.saving_workspace_bytes
            for s in flat
        )
        self.saving_ws = np.fromiter(saving, dtype=np.int64, count=len(flat))
        self.backward_ws = np.array([s.backward_workspace_bytes for s in flat], dtype=np.int64)
        self.forward_s, self.own_s, self.loss_s = _on_grid(chain.store_all_s, loss_s, bundles)
        self.outside_bytes = chain.static_bytes + chain.input_bytes
        kinds: dict[tuple[float | int, ...], int] = {}
        self.kind = np.empty(len(stages), dtype=np.int64)
        for i in range(len(stages)):
            own = slice(self.bundles[i], self.bundles[i + 1])
            columns = (self.own_s, self.saved, self.saving_ws, self.backward_ws)
            key: tuple[float | int, ...] = (
                rule[i],
                self.forward_s[i],
                self.x[i + 1],
                self.forward_ws[i],
            )
            key += tuple(value for column in columns for value in column[own].tolist())
            self.kind[i] = kinds.setdefault(key, len(kinds))
        input_key = self.x[:-1].copy()
        input_key[0] = -1  # the first stage makes no gradient of its input
        self.row_of, self.row_stage, self.row_length = find_classes(self.kind, input_key)
        self.line = PackedChain(
            forward_s=self.forward_s,
            own_s=self.own_s,
            loss_s=self.loss_s,
            x=self.x,
            bundles=self.bundles,
            saved=self.saved,
            forward_ws=self.forward_ws,
            saving_ws=self.saving_ws,
            backward_ws=self.backward_ws,
            loss_ws=self.loss_ws,
            row_of=self.row_of,
            row_stage=self.row_stage,
            row_length=self.row_length,
            rule=self.rule,
        )

    @property
    def num_rows(self) -> int:
        """Number of distinct sub-chains."""
        return int(self.row_stage.size)

    @cached_property
    def num_splits(self) -> int:
        """Number of (sub-chain, first checkpoint) pairs: what the recurrence evaluates."""
        return int(self.row_length.sum())

    @cached_property
    def _least(self) -> NDArray[np.int64]:
        least = np.empty(self.num_rows, dtype=np.int64)
        run(least_memory, 2 * self.num_splits, self.line, least)
        return least

    @cached_property
    def min_feasible_bytes(self) -> int:
        """The least budget at which any persistent schedule fits, exactly."""
        return int(self._least[-1]) + self.outside_bytes

    @property
    def least_budget(self) -> LeastBudget:
        """`min_feasible_bytes` and the op that sets it, proven over the persistent schedules."""
        return LeastBudget(self.min_feasible_bytes, None, self.min_feasible_bytes, self.scope)

    def least_memory_schedule(self) -> tuple[Schedule, tuple[ChosenVariant, ...]]:
        """A persistent schedule whose peak is `min_feasible_bytes`, and its variants."""
        rows = np.arange(self.num_rows, dtype=np.int64)
        table = Table(
            dense=False,
            unit_bytes=1,
            rest_bytes=0,
            take_x=self.x,
            take_saved=self.saved,
            first=rows,
            start=rows,
            count=np.ones_like(rows),
            memory=self._least,
            values=np.zeros(self.num_rows, dtype=np.float64),
        )
        schedule, chosen = self.schedule(table, self.min_feasible_bytes)
        assert schedule is not None
        return schedule, chosen

    @property
    def scope(self) -> Scope:
        """The class of schedules over which the recurrence is optimal."""
        return PERSISTENT_VARIANTS if self.saved.size > self.x.size - 1 else PERSISTENT

    def solve_slots(self, budget_bytes: int, unit_bytes: int, *, round_up: bool) -> Table:
        """Rows over memory slots of `unit_bytes`.

        Sizes rounded up give schedules that fit; sizes rounded down give lower bounds on time. Only
        what stays stored is rounded: the needs of single runs are compared in true bytes, because
        the bytes left are known to be at least (up) or at most (down) ``slots * unit + rest``.
        """
        inside = budget_bytes - self.outside_bytes
        num_slots, rest = inside // unit_bytes, inside % unit_bytes
        extra = unit_bytes - 1 if round_up else 0
        take_x, take_saved = (self.x + extra) // unit_bytes, (self.saved + extra) // unit_bytes
        nothing = np.empty(0, dtype=np.int64)
        empty = Table(
            dense=True,
            unit_bytes=unit_bytes,
            rest_bytes=rest,
            take_x=take_x,
            take_saved=take_saved,
            first=nothing,
            start=nothing,
            count=nothing,
            memory=nothing,
            values=np.empty(0),
        )
        return solve_dense(self.line, empty, num_slots)

    def solve_exact(self, cap_bytes: int, *, max_points: int, max_work: int) -> Table:
        """Rows on true bytes, up to a budget of `cap_bytes`.

        Raises
        ------
        WorkLimitReached
            More than `max_points` break points in all, or `max_work` points merged.
        """
        limits = min(max_points, _MOST), min(max_work, _MOST)  # as kernels count
        code, table = solve_exact(self.line, cap_bytes - self.outside_bytes, *limits)
        if code != DONE:
            what = "break points" if code == TOO_MANY_POINTS else "points merged"
            limit = max_points if code == TOO_MANY_POINTS else max_work
            raise WorkLimitReached(
                f"the exact curve of {self.chain.name!r} needs more than {limit:,} {what}",
                hint="use --planner rotor: memory slots with a proven gap",
            )
        return table

    def time_s(self, table: Table, budget_bytes: int) -> float:
        """Least time of the whole chain in `table` at `budget_bytes`; infinite if infeasible."""
        row = int(self.row_of[0, -1])
        inside = budget_bytes - self.outside_bytes
        if table.dense:
            at = inside // table.unit_bytes - int(table.first[row])
        else:
            points = table.memory[table.start[row] : table.start[row] + table.count[row]]
            at = int(np.searchsorted(points, inside, side="right")) - 1
        if at < 0 or not table.count[row]:
            return math.inf
        return float(table.values[table.start[row] + min(at, int(table.count[row]) - 1)])

    def schedule(
        self, table: Table, budget_bytes: int
    ) -> tuple[Schedule | None, tuple[ChosenVariant, ...]]:
        """The schedule behind `time_s`, ``None`` if infeasible, and the variants it runs with."""
        inside = (budget_bytes - self.outside_bytes) // table.unit_bytes
        runs, bundle_of = self.sub_runs(table, inside, 0, self.x.size - 1)
        if not runs.size:
            return None, ()
        chosen = [
            ChosenVariant(self.options[i][bundle - 1], self.chain.stages[i].name)
            for i, bundle in enumerate(bundle_of.tolist())
            if bundle
        ]
        if self.loss_is_stage:
            num = self.chain.num_stages
            runs = runs[(runs != num) & (runs != num + 1)]  # the loss stage and what follows
            runs = np.where(runs > num, runs - 2, runs).astype(np.int32)
        return Schedule(self.chain.op_names, runs), tuple(chosen)

    def sub_runs(
        self, table: Table, memory: int, begin: int, end: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Best op runs of stages ``begin..end-1`` alone, as indices, and each stage's bundle.

        Both are empty where the stages do not fit.

        Parameters
        ----------
        memory
            Bytes for the stages in units of the table, with the gradient of their output counted in
            them and their input not.
        """
        return list_runs(self.line, table, memory, begin, end)


def exact_plan(problem: Problem, table: Table, budget_bytes: int, *, planner: str) -> Plan:
    """The plan at `budget_bytes` from a table that is exact there."""
    schedule, chosen = problem.schedule(table, budget_bytes)
    return make_plan(
        problem.chain,
        budget_bytes,
        schedule,
        planner=planner,
        lower_bound_s=problem.time_s(table, budget_bytes),
        bound_scope=problem.scope,
        least=problem.least_budget,
        setting=Setting(variants=chosen),
    )


def infeasible_plan(problem: Problem, budget_bytes: int, *, planner: str) -> Plan:
    """The infeasible plan, which states the budget that would be enough and the op that sets it."""
    schedule, chosen = problem.least_memory_schedule()
    least = simulate(resolve(problem.chain, chosen), schedule)
    assert least.peak_bytes == problem.min_feasible_bytes
    return make_plan(
        problem.chain,
        budget_bytes,
        None,
        planner=planner,
        bound_scope=problem.scope,
        least=replace(problem.least_budget, op=least.peak_op),
    )


def _rule(stage: Stage) -> int:
    """The rule for `stage`; a stage that saves no more than its output has nothing to recompute."""
    if stage.rule == "recompute" and (stage.saved_bytes > stage.output_bytes):
        return RECOMPUTE
    return KEEP if stage.rule == "keep" else FREE


def _on_grid(
    store_all_s: float, loss_s: float, bundles: Sequence[Sequence[Stage]]
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Times of forwards by stage, of a forward and its backward by bundle, and of the loss."""
    forward = np.array([group[0].forward_s for group in bundles], dtype=np.float64)
    backward = np.array([s.backward_s for group in bundles for s in group], dtype=np.float64)
    stage_of = np.repeat(np.arange(len(bundles)), [len(group) for group in bundles])
    if store_all_s == 0 and not backward.any():
        return forward, backward, 0.0
    whole = max(store_all_s, float(backward.sum()))
    grid = math.ldexp(1.0, math.frexp(whole)[1] - 46)
    forward, backward = np.rint(forward / grid) * grid, np.rint(backward / grid) * grid
    return forward, forward[stage_of] + backward, round(loss_s / grid) * grid

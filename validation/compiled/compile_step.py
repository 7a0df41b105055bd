"""A captured step whose ops are compiled groups: planned and run like any other."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

import torch

from schedsim import Graph, Schedule, simulate

from ..capture.captured import CapturedGraph
from ..capture.program import Call, Program
from ..costs.measured import measure_call
from ..costs.signature import signature
from ..torch_private import inductor_calls as inductor
from ..user_warnings import warn_user
from .baked_views import bake_views
from .direct_calls import call_directly
from .fuse import fused, fused_without
from .group import CompileWarning as CompileWarning
from .group import FusedGroup, Groups, OverwritingGroup, reason
from .group_sizes import GroupSize
from .joining import JoinedRuns, join_runs
from .neighbours import beside_their_like, halves_together
from .trial_runs import try_on_device
from .zero_gradients import keeps_layouts

_MEASURING_S = 0.01
"""Seconds to measure each candidate for joining, and its parts."""


def compiled_graph(captured: CapturedGraph) -> CapturedGraph:
    """`captured` with its fusible ops in groups, each distinct group compiled; times are zero.

    The result can be planned and run like any captured step: a schedule of groups and kernels runs
    in its own order, with only the tensors that the graph counts, so that its peak is the plan's.

    Raises
    ------
    Exception
        Whatever inductor raises where it cannot compile, as without a C++ compiler.
    """
    groups = Groups()
    program = _compiled(fused(captured.program, groups), groups)
    found = _with_program(captured, program, groups)
    return replace(found, narrower=partial(_narrower_graph, captured, program, groups))


def _narrower_graph(
    captured: CapturedGraph, wide: Program, groups: Groups, size: GroupSize = GroupSize.LARGE
) -> CapturedGraph | None:
    """`captured` in groups that take less room than those of `wide`, which are of `size`.

    Of the next size that changes anything; ``None`` if there is none.
    """
    made = _narrower(captured.program, wide, groups, size)
    if made is None:
        return None
    program, smaller = made
    found = _with_program(captured, program, groups)
    line = "groups are small: larger ones do not fit the budget, or take longer with their repeats"
    narrower = partial(_narrower_graph, captured, program, groups, smaller)
    return replace(found, notes=(*found.notes, line), narrower=narrower)


def _narrower(
    program: Program, wide: Program, groups: Groups, size: GroupSize
) -> tuple[Program, GroupSize] | None:
    """`program` in groups of the next size below `size` that are not those of `wide`, if any."""
    targets = [call.target for call in wide.calls]
    for smaller in size.smaller:
        found = fused(program, groups, size=smaller)
        if [call.target for call in found.calls] != targets:
            return _compiled(found, groups), smaller
    return None


def _with_program(captured: CapturedGraph, program: Program, groups: Groups) -> CapturedGraph:
    """`captured` as the step that runs `program`; times are zero."""
    found = captured.with_program(program)
    places = [c for c in program.calls if isinstance(c.target, FusedGroup)]
    num_ops = sum(c.target.num_ops for c in places if isinstance(c.target, FusedGroup))
    distinct = len({c.target for c in places})
    note = (
        f"compiled: {num_ops} ops fused into {len(places)} groups, {distinct} of them "
        "distinct and compiled; the other ops are kernels as they are"
    )
    if any(call.target is inductor.draw_seeds for call in program.calls):
        note += "; dropout draws the numbers of compiled dropout"
    return replace(
        found,
        notes=(*captured.notes, note),
        join=StepJoiner(program, groups, torch.device(captured.backend)),
    )


class StepJoiner:
    """Joins neighbouring runs of schedules of one step; measurements serve all of them."""

    def __init__(self, program: Program, groups: Groups, device: torch.device) -> None:
        self._program, self._groups, self._device = program, groups, device
        self._known: dict[str, tuple[float, int]] = {}

    def __call__(self, graph: Graph, runs: Sequence[int]) -> JoinedRuns:
        """`runs` of `graph` joined, within the peak that they have without joining."""
        peak = simulate(graph, Schedule(graph.op_names, runs)).peak_bytes
        runs = beside_their_like(self._program, graph, runs)
        runs = halves_together(self._program, graph, runs)
        limit = peak - graph.static_bytes
        joined = join_runs(self._program, runs, limit, self._groups, self._measured)
        return replace(joined, program=call_directly(bake_views(joined.program)))

    def _measured(self, program: Program, call: Call) -> tuple[float, int]:
        key = signature(program, call)
        if key not in self._known:
            found = measure_call(program, call, self._device, _MEASURING_S)
            self._known[key] = found.time_s, found.workspace_bytes
        return self._known[key]


def compiled_where_it_works(captured: CapturedGraph) -> CapturedGraph:
    """The `compiled_graph`; if inductor cannot compile, `captured` itself, with a warning."""
    try:
        return compiled_graph(captured)
    except Exception as error:  # whatever a pass of inductor raises
        line = f"{captured.graph.name} runs uncompiled: {reason(error)}"
        warn_user(line, CompileWarning)
        return replace(captured, notes=(*captured.notes, line))


def fused_where_it_works(program: Program, name: str, groups: Groups) -> Program:
    """The compiled groups of a part of a step; if inductor cannot compile, `program` itself."""
    try:
        with inductor.outside_of_traces():
            return _compiled(fused(program, groups), groups)
    except Exception as error:  # whatever a pass of inductor raises
        line = f"{name} runs uncompiled: {reason(error)}"
        warn_user(line, CompileWarning)
        return program


def narrower_where_it_works(
    program: Program, wide: Program, groups: Groups, size: GroupSize
) -> tuple[Program, GroupSize] | None:
    """A part of a step in groups that take less room than those of `wide`, which are of `size`.

    ``None`` if there are none, or if inductor cannot compile them.
    """
    if wide is program:  # inductor did not compile this part
        return None
    try:
        with inductor.outside_of_traces():
            return _narrower(program, wide, groups, size)
    except Exception:  # whatever a pass of inductor raises: the step is refused as it was
        return None


def without_gradients_where_it_works(
    program: Program, lacking: Collection[int], groups: Groups, *, size: GroupSize
) -> Program | None:
    """A part of a step in groups, for zeros as the given gradients at `lacking`; it is compiled.

    Its schedules are those of the part for all gradients. ``None`` if it has no such form, or if
    inductor cannot compile it.
    """
    try:
        with inductor.outside_of_traces():
            found = fused_without(program, lacking, groups, size=size)
            return _compiled(found, groups) if found is not None and keeps_layouts(found) else None
    except Exception:  # whatever a pass of inductor raises: zeros are made
        return None


def _compiled(program: Program, groups: Groups) -> Program:
    """`program` with its groups compiled; calls whose code fails write over no input."""
    groups.compile()
    calls = [
        replace(call, takes_over=-1, overwriting=None) if _writes_over_nothing(call) else call
        for call in program.calls
    ]
    found = replace(program, calls=calls)
    try_on_device(found, groups.tried)
    return found


def _writes_over_nothing(call: Call) -> bool:
    by_op = isinstance(call.target, FusedGroup) and call.target.by_op
    return by_op or (isinstance(call.overwriting, OverwritingGroup) and call.overwriting.fails)

"""The result of `capture`: a graph that planners take, and the way back to the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from torch import nn

from schedsim import Graph, Schedule
from schedsim.errors import UnsupportedError

from ..autocasts import Autocast
from ..guards.backward_place import BackwardAutocast
from ..guards.state import StateSnapshot
from .program import Program
from .skeleton import CallPlan, Loss
from .to_graph import to_graph

if TYPE_CHECKING:
    from ..op_level.scheduled_ops import ScheduledOps


class OpCosts(Protocol):
    """The costs that `CapturedGraph.with_costs` needs: seconds and workspace of ops, by name."""

    @property
    def time_s(self) -> Mapping[str, float]: ...

    @property
    def workspace_bytes(self) -> Mapping[str, int]: ...

    @property
    def size_bytes(self) -> Mapping[str, int]: ...

    @property
    def notes(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, eq=False, repr=False)
class CapturedGraph:
    """A training step of a model as a graph, with all that is needed to run schedules of it.

    Attributes
    ----------
    graph : Graph
        Ops in the order in which the step was traced; one tensor per storage.
    backend : str
        ``"cpu"`` or ``"cuda"``: the device whose kernels the graph calls.
    notes : tuple of str
        Lines that say what a user must know.
    front : str
        ``"direct"`` or ``"dynamo"``: how the model was traced.
    runnable : bool
        Whether `module` works: not with substituted kernels, nor without memory.
    program : Program
        The calls behind the ops.
    autocast : Autocast
        The autocast in which the forward was traced, of all devices.
    backward
        Where the backward was traced to run: within autocast or outside of it.
    guards : StateSnapshot or None
        The Python state that the graph assumes; after a change the step has another graph.
    join : callable or None
        From a schedule's runs to the runs in their place, as `compiled.joining.JoinedRuns`;
        ``None`` to run the schedule unchanged.
    narrower : callable or None
        Makes the same step of a graph that fits smaller budgets and is slower, which may have one
        of its own; it gives ``None`` where there is none.
    """

    graph: Graph
    backend: str
    notes: tuple[str, ...]
    front: str
    runnable: bool
    program: Program
    model: nn.Module
    loss: Loss | None
    call_plan: CallPlan
    training: tuple[bool, ...]
    autocast: Autocast
    guards: StateSnapshot | None = None
    backward: BackwardAutocast = field(default_factory=BackwardAutocast)
    join: Callable[[Graph, Sequence[int]], Any] | None = None
    narrower: Callable[[], CapturedGraph | None] | None = None

    def __repr__(self) -> str:
        return (
            f"CapturedGraph({self.graph.name!r}: {self.graph.num_ops} ops, kernels of "
            f"{self.backend}, traced by the {self.front} front end)"
        )

    def with_costs(self, costs: OpCosts) -> CapturedGraph:
        """The same step with times (seconds) and workspaces (bytes) filled in.

        Parameters
        ----------
        costs
            Costs by op name; an op without a name there keeps its costs. Sizes of tensors that
            kernels were found to return in another size are corrected.
        """
        sizes = costs.size_bytes
        ops = tuple(
            replace(
                op,
                time_s=costs.time_s.get(op.name, op.time_s),
                workspace_bytes=costs.workspace_bytes.get(op.name, op.workspace_bytes),
                writes={name: sizes.get(name, size) for name, size in op.writes.items()},
            )
            for op in self.graph.ops
        )
        notes = (*self.notes, *costs.notes)
        return replace(self, graph=replace(self.graph, ops=ops), notes=notes)

    def with_program(self, program: Program) -> CapturedGraph:
        """The same step as the calls of `program`; times and workspaces are zero."""
        storages = {self.program.values[v].storage for v in self.program.constants}
        constants = sum(self.program.storages[s].size_bytes for s in storages)
        graph = to_graph(program, self.graph.name, self.graph.static_bytes - constants)
        return replace(self, program=program, graph=graph)

    def with_state(self, extra_bytes: int) -> CapturedGraph:
        """The same step with `extra_bytes` more static bytes (optimizer state, for example)."""
        graph = replace(self.graph, static_bytes=self.graph.static_bytes + extra_bytes)
        return replace(self, graph=graph)

    def module(self, schedule: Schedule) -> ScheduledOps:
        """The model as a module that runs `schedule` and returns the loss.

        It shares parameters and buffers with the model; ``module(*inputs)`` runs the forward part,
        ``loss.backward()`` the rest.

        Raises
        ------
        UnsupportedError
            The graph can be planned but not run.
        InvalidScheduleError
            The schedule is not legal on the graph.
        """
        if not self.runnable:
            raise UnsupportedError(
                f"the graph of {self.graph.name!r} can be planned, not run: {self._why_not()}",
                hint="capture the model with its parameters loaded and kernels='native'",
            )
        from ..op_level.scheduled_ops import ScheduledOps

        return ScheduledOps(self, schedule)

    def _why_not(self) -> str:
        tensors = [*self.model.parameters(), *self.model.buffers()]
        without = any(tensor.device.type == "meta" for tensor in tensors)
        return "the model has no memory" if without else "its attention is a substitute"

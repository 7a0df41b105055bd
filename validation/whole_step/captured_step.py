"""A training step as a workload, with everything resident counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from schedsim.dataflow.chain import Chain
from schedsim.dataflow.graph import Graph
from schedsim.files.workload_files import workload_hash

from ..guards.backward_place import BackwardAutocast
from ..guards.recording import Recorded
from ..guards.state import StateSnapshot
from ..ranks import ALONE, Ranks
from ..ranks.envelope import envelope
from ..ways.microbatch import Splitter
from .resident_state import ResidentState


@dataclass(frozen=True)
class CapturedStep:
    """A step of a model as a workload, with everything resident counted.

    Attributes
    ----------
    level
        ``"op"`` or ``"block"``.
    make_module
        A function from a schedule to the module that runs it; for blocks, from a schedule with the
        graph of its copies and the capacities within which the copies were planned.
    most_states_bytes
        Most bytes of generator states for repeated dropout, where these are in the memory that the
        plan is for: the host's. By blocks, of the buffers that blocks change, kept for repeats. The
        workload does not count them.
    output_class
        For a model that returns its own loss in an output object: the class of that object.
    splitter, num_parts, part_size, others
        Where the step is one of `num_parts` micro-batches: what splits the batch, the number of
        samples in the largest micro-batch, which this one is, and the captures for other sizes.
    kept_gradients_bytes
        Bytes of gradients that are counted among the static bytes.
    backward
        Where a traced backward was taken to run; ``None`` where autograd itself runs it.
    recorded, guards
        What a forward was seen to do besides computing, and the state of Python that the plan
        assumes: another state needs another plan.
    narrower
        Makes, from inputs and keywords, the same step as a graph for smaller budgets, once; that
        may have one for still smaller ones.
    """

    level: str
    workload: Chain | Graph
    state: ResidentState
    make_module: Callable[..., nn.Module]
    notes: tuple[str, ...]
    output_class: type | None
    splitter: Splitter | None = None
    num_parts: int = 1
    part_size: int = 0
    others: Mapping[int, CapturedStep] = field(default_factory=dict)
    kept_gradients_bytes: int = 0
    device: torch.device | str = "cpu"
    most_states_bytes: int = 0
    recorded: Recorded | None = None
    guards: StateSnapshot | None = None
    backward: BackwardAutocast | None = None
    narrower: Callable[[Any], CapturedStep | None] | None = None

    def narrowed(self, given: Any, ranks: Ranks = ALONE) -> CapturedStep | None:
        """The same step as a slower graph for smaller budgets; ``None`` if there is none.

        Parameters
        ----------
        given
            Inputs and keywords of the step.
        ranks
            Those that plan together: all of them come here, and have the graph, or none has.
        """
        narrower = self.narrower
        if not ranks.all(narrower is not None, "take a step apart further"):
            return None
        assert narrower is not None
        found = ranks.together(
            "take a step apart further", lambda: narrower(given), runs_model=True
        )
        if not ranks.all(found is not None, "take a step apart further"):
            return None
        assert found is not None
        found = found.of_all(ranks).with_added(self.added_bytes)
        return replace(found, recorded=self.recorded, guards=self.guards)

    def of_all(self, ranks: Ranks) -> CapturedStep:
        """The step with the largest sizes and times of all ranks, so that one plan fits all."""
        if ranks.alone:
            return self
        return replace(
            self,
            workload=envelope(self.workload, ranks),
            most_states_bytes=max(ranks.gather(self.most_states_bytes, "compare steps")),
            _own_static_bytes=max(ranks.gather(self._own_static_bytes, "compare steps")),
        )

    @property
    def store_all_s(self) -> float:
        """Seconds of all ops, each run once."""
        return float(sum(op.time_s for op in self.workload.graph.ops))

    @property
    def added_bytes(self) -> int:
        """Static bytes that do not come from the model alone."""
        return self.workload.static_bytes - self._own_static_bytes

    _own_static_bytes: int = 0

    def with_added(self, added_bytes: int) -> CapturedStep:
        """The same step with `added_bytes` in place of the optimizer and extra bytes so far."""
        more = added_bytes - self.added_bytes
        workload = replace(self.workload, static_bytes=self.workload.static_bytes + more)
        state = replace(self.state, extra_bytes=max(0, self.state.extra_bytes + more))
        return replace(self, workload=workload, state=state)

    @property
    def structure_hash(self) -> str:
        """Content hash without machine, optimizer and name."""
        return workload_hash(bare(self.workload, self._own_static_bytes))


def bare(workload: Chain | Graph, static_bytes: int) -> Chain | Graph:
    """`workload` without times and workspaces."""
    if isinstance(workload, Chain):
        stages = tuple(
            replace(
                stage,
                forward_s=0.0,
                backward_s=0.0,
                forward_workspace_bytes=0,
                backward_workspace_bytes=0,
                saving_workspace_bytes=None,
            )
            for stage in workload.stages
        )
        none: dict[str, Any] = {"loss_s": 0.0, "loss_workspace_bytes": 0, "gradient_bytes": ()}
        return replace(workload, stages=stages, static_bytes=static_bytes, **none)
    clear: dict[str, Any] = {"workspace_bytes": 0, "saving_workspace_bytes": None}
    ops = tuple(replace(op, time_s=0.0, **clear) for op in workload.ops)
    return replace(workload, ops=ops, static_bytes=static_bytes)

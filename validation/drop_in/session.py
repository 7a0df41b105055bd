"""The steps of one compiled model: which parts they run, and by which schedules."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch

from schedsim import Schedule, simulate
from schedsim.api import try_plan
from schedsim.errors import InfeasibleBudgetError
from schedsim.plans.plan import Plan
from schedsim.units import format_bytes

from ..measure import storage_bytes
from ..resident_state import resident_state
from ..step_budget import budget_in_bytes
from .drop_in_options import DropInOptions
from .traced_part import TracedPart


@dataclass
class OpenCall:
    """A forward whose backward may still come.

    Attributes
    ----------
    header
        Lives as long as what the forward has saved.
    kept_bytes
        Saved by it, and its outputs.
    """

    part: TracedPart
    number: int
    header: weakref.ref[torch.UntypedStorage]
    kept_bytes: int


class Session:
    """Plans for the parts of the steps of one `torch.compile`.

    Attributes
    ----------
    budget_bytes
        Once a step has come.
    plans
        TracedPart -> its plan.
    """

    def __init__(self, options: DropInOptions) -> None:
        self.options = options
        self.parts: list[TracedPart] = []
        self.budget_bytes: int | None = None
        self.plans: dict[int, Plan] = {}
        self._numbers: dict[int, int] = {}
        self._open: list[OpenCall] = []

    def add(self, part: TracedPart) -> None:
        """Take `part` among those that steps may run."""
        self.parts.append(part)

    # -- what the parts report --------------------------------------------------------------------

    def forward_begins(self, part: TracedPart, arguments: list[Any]) -> int:
        """The number of the schedule by which `part` shall run."""
        key = id(part)
        if key not in self._numbers:
            self._plan(part, arguments)
        return self._numbers[key]

    def forward_ends(self, part: TracedPart, number: int, header: torch.Tensor) -> None:
        """Its saved tensors live as long as `header`."""

    def backward_begins(self, part: TracedPart, number: int, header: torch.Tensor) -> None:
        """The backward half of a call of `part` is about to run."""

    def backward_ends(self, part: TracedPart) -> None:
        """The backward half of a call of `part` has run."""

    # -- planning ---------------------------------------------------------------------------------

    def _plan(self, part: TracedPart, arguments: list[Any]) -> None:
        part.measure()
        fixed = [arguments[i] for i in part.fixed_positions]
        static_bytes = storage_bytes(fixed) + self._state_bytes(fixed)
        outside_bytes = 3 * part.output_bytes
        workload = part.workload(static_bytes, outside_bytes)
        store_all = simulate(workload, Schedule.store_all(workload)).peak_bytes
        if self.budget_bytes is None:
            self.budget_bytes = budget_in_bytes(self.options.budget, store_all, arguments)
        plan = try_plan(
            workload, self.budget_bytes, self.options.planner, effort=self.options.effort
        )
        if plan.schedule is None:
            raise InfeasibleBudgetError(
                f"a step of {part.name} does not fit {format_bytes(self.budget_bytes)}", plan=plan
            )
        self.plans[id(part)] = plan
        self._numbers[id(part)] = part.add(plan.schedule)

    def _state_bytes(self, fixed: list[torch.Tensor]) -> int:
        if self.options.optimizer is None:
            return self.options.extra_bytes
        holder = torch.nn.Module()
        parameters = [t for t in fixed if isinstance(t, torch.nn.Parameter)]
        for i, parameter in enumerate(parameters):
            holder.register_parameter(str(i), parameter)
        state = resident_state(holder, self.options.optimizer)
        return state.optimizer_bytes + self.options.extra_bytes

"""The setting of a plan: how the workload that runs differs from the one that was given.

A planner may choose variants, copy tensors to host memory or to memory levels, or plan for the
bytes that an allocator reserves. A step of a real model may be split into micro-batches, compute
some layers in chunks, and count additional bytes. A plan's schedule is legal on the workload with
all these changes, and on no other. `Setting` holds the changes in one typed value, makes the
workload that runs, and simulates schedules on it. Every reader of plans goes through the setting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..dataflow.copies import copies_in
from ..dataflow.recomputation_rules import NO_RULES, RecomputationRules, check_evicted
from ..dataflow.variants import ChosenVariant, resolve
from ..errors import UnsupportedError
from ..simulation.simulator import simulate
from .levels import MemoryLevels
from .offloading import Offloading

if TYPE_CHECKING:
    from ..dataflow.chain import Chain
    from ..dataflow.graph import Graph
    from ..simulation.result import Simulation
    from ..simulation.schedule import Schedule

CopyTarget = Offloading | MemoryLevels
"""Where a plan may copy to: host memory over a link, or memory levels."""


@dataclass(frozen=True, slots=True)
class AllocatorChoice:
    """The allocator whose reserved bytes the budget bounds.

    Attributes
    ----------
    name, options
        As `schedsim.allocate` takes them.
    inner_budget_bytes
        The budget of tensors and workspaces within which the schedule was planned; ``None`` without
        a schedule.
    reserved_bytes
        The most bytes that the allocator reserves over two steps; ``None`` without a schedule.
    num_emptied
        How often the allocator had to return cached memory to the device.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    inner_budget_bytes: int | None = None
    reserved_bytes: int | None = None
    num_emptied: int = 0


@dataclass(frozen=True, slots=True)
class StepChanges:
    """How the step of a real model was captured and changed before it was planned.

    Attributes
    ----------
    level
        ``"block"`` or ``"op"``.
    structure
        A hash of the captured graph without its times, by which `schedsim.apply` recognises the
        graph.
    added_bytes
        Static bytes counted in addition to those of the captured step, such as optimizer state.
    chunk
        Layer -> number of chunks into which its tokens are split.
    accumulate
        Micro-batches of a step.
    generator_states_bytes
        Bytes of the random generators' states that are kept for ops that run again, and of the
        buffers that are kept for blocks that do.
    compiled
        Whether the ops of the step were fused into compiled groups first.
    """

    level: str
    structure: str = ""
    added_bytes: int = 0
    chunk: Mapping[str, int] = field(default_factory=dict)
    accumulate: int = 1
    generator_states_bytes: int = 0
    compiled: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """How the workload that a plan runs differs from the workload that was given.

    Attributes
    ----------
    variants
        The chosen variants, from those that the workload offers.
    copies
        Where the schedule may copy tensors; ``None`` where everything stays on the device.
    allocator
        The allocator whose reserved bytes the budget bounds; ``None`` for exact bytes.
    step
        For a real model: how its step was captured and changed. ``None`` for other workloads.
    rules
        The user's rules on what is kept and what is recomputed.

    Examples
    --------
    >>> import schedsim
    >>> chain = schedsim.Chain.from_arrays("two", 4, forward_s=[1, 1], backward_s=[2, 2],
    ...                                    output_bytes=[4, 4], saved_bytes=[10, 10])
    >>> plan = schedsim.plan(chain, 26, link="16B/s")
    >>> plan.setting.copies.d2h.bytes_per_s
    16
    >>> plan.setting.simulate(chain, plan.schedule, plan.budget_bytes).makespan_s
    6.375
    """

    variants: tuple[ChosenVariant, ...] = ()
    copies: CopyTarget | None = None
    allocator: AllocatorChoice | None = None
    step: StepChanges | None = None
    rules: RecomputationRules = NO_RULES

    @property
    def link(self) -> Offloading | None:
        """The link to host memory; ``None`` where there is none."""
        return self.copies if isinstance(self.copies, Offloading) else None

    @property
    def levels(self) -> MemoryLevels | None:
        """The memory levels; ``None`` where there are none."""
        return self.copies if isinstance(self.copies, MemoryLevels) else None

    def resolve(self, workload: Chain | Graph) -> Chain | Graph:
        """`workload` with its rules and the chosen variants, before any copies are added."""
        return resolve(self.rules.of_workload(workload), self.variants)

    def workload(self, workload: Chain | Graph, schedule: Schedule) -> Chain | Graph:
        """The workload that `schedule` runs on: with the variants and its copies. O(ops)."""
        run = self.resolve(workload)
        return run if self.copies is None else self.copies.graph(run, schedule)

    def limits(
        self,
        run: Chain | Graph,
        budget_bytes: int | None,
        capacities: Mapping[str, int] | None = None,
    ) -> dict[str, int]:
        """Memory pool -> bytes: runs of the workload `run` wait until their memory fits.

        For a workload with copies, the limits are the budget and the host memory; `capacities`
        override them.
        """
        own: dict[str, int] = {}
        if self.copies is not None and budget_bytes is not None and not run.graph.one_stream:
            own = self.copies.capacities(budget_bytes)
        return {**own, **(capacities or {})}

    def simulate(
        self,
        workload: Chain | Graph,
        schedule: Schedule,
        budget_bytes: int | None,
        *,
        capacities: Mapping[str, int] | None = None,
    ) -> Simulation:
        """The cost of `schedule` on the workload that runs.

        Parameters
        ----------
        workload
            The workload that was planned for, without the changes of this setting.
        budget_bytes
            Copies, and the ops after them, wait until their memory fits this budget.
        capacities
            Pool -> bytes, in place of the budget and the host memory.

        Raises
        ------
        InvalidScheduleError
            The schedule is not legal, or keeps what must be recomputed.
        """
        run = self.workload(workload, schedule)
        limits = self.limits(run, budget_bytes, capacities)
        check_evicted(run.graph, schedule)
        return simulate(run, schedule, capacities=limits or None)

    def words(self, schedule: Schedule | None) -> str:
        """The things that `schedule` needs besides the given workload, in words; may be empty."""
        found = ["variants"] if self.variants else []
        found += ["copies"] if self.copies_anything(schedule) else []
        return " and ".join(found)

    def copies_anything(self, schedule: Schedule | None) -> bool:
        """Whether `schedule` has copies that this setting adds."""
        return (
            schedule is not None and self.copies is not None and bool(copies_in(schedule.op_names))
        )


PLAIN = Setting()
"""The workload runs as it was given."""


def refuse_copies(setting: Setting, schedule: Schedule | None, what: str) -> None:
    """Refuse a plan with copies, for `what`, which cannot take such a plan.

    Raises
    ------
    UnsupportedError
        `schedule` has copies.
    """
    if setting.copies_anything(schedule):
        raise UnsupportedError(
            f"{what} takes no plan that offloads",
            hint="schedsim simulate and plot do; or plan again without --link or --memory-level",
        )


def refuse_levels(setting: Setting, schedule: Schedule | None, what: str) -> None:
    """Refuse a plan over memory levels, for `what`, which knows only copies over a link.

    Raises
    ------
    UnsupportedError
        `schedule` copies to such levels.
    """
    if setting.levels is not None and setting.copies_anything(schedule):
        raise UnsupportedError(
            f"{what} takes no plan over memory levels",
            hint="schedsim simulate and plot do; or plan again with --link instead",
        )

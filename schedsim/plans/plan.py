"""Plans: a schedule and its origin, replayed by the simulator before anybody sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, wraps
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from ..checks.checked_arguments import checked
from ..dataflow.shown_in_notebooks import ShownInNotebooks
from ..dataflow.variants import ChosenVariant
from ..errors import SchedsimError
from ..files.workload_files import workload_hash
from ..kernels import compile_clock
from ..simulation.schedule import Schedule
from ..simulation.simulator import Simulation, simulate
from ..units import format_bytes, format_seconds
from .least_budget import LeastBudget, least_of
from .scope import ANY_SCHEDULE, Scope
from .search import NO_SEARCH, SearchRecord
from .setting import PLAIN, Setting
from .source import WorkloadSource

if TYPE_CHECKING:
    from ..dataflow.chain import Chain
    from ..dataflow.graph import Graph

Asked = ParamSpec("Asked")
Answer = TypeVar("Answer")

Status = Literal["optimal", "feasible", "infeasible"]
STATUSES: tuple[Status, ...] = ("optimal", "feasible", "infeasible")

_UNKNOWN = LeastBudget()

# A makespan within this factor of the bound meets it: both are sums of floats.
OPTIMALITY_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class WorkloadRef:
    """Which workload a plan belongs to: name, kind (``chain``, ``graph``), content hash.

    `source` says where the workload comes from; ``None`` for a workload made in Python. A plan of a
    real model carries the workload in `captured`, as the model's times are never measured alike
    twice.
    """

    name: str
    kind: str
    content_hash: str
    source: WorkloadSource | None = None
    captured: Chain | Graph | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One planner's answer, as a row of a comparison. Absent numbers are ``None``."""

    planner: str
    status: Status
    peak_bytes: int | None
    makespan_s: float | None
    overhead: float | None
    lower_bound_s: float
    bound_scope: Scope
    min_feasible_bytes: int | None
    planning_s: float

    def to_dict(self) -> dict[str, Any]:
        """The row as part of a JSON document."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return fields | {"bound_scope": str(self.bound_scope)}


@dataclass(frozen=True)
class Plan(ShownInNotebooks):
    """A schedule for a workload and a budget, and what is proven about it.

    Attributes
    ----------
    status
        ``optimal``: the makespan meets `lower_bound_s`; ``feasible``: within the budget;
        ``infeasible``: the planner found no schedule within the budget, `schedule` is ``None``.
    peak_bytes, makespan_s, overhead
        As simulated; ``None`` where there is no schedule.
    lower_bound_s
        No schedule in `bound_scope` within the budget is faster, in seconds.
    bound_scope
        The class of schedules over which the bound, and so ``optimal``, holds.
    gap
        makespan / lower bound - 1.
    least
        The least budget at which this planner finds a schedule, and what is proven about it.
    candidates
        One row per planner, where several were tried.
    setting
        How the workload that runs differs from the given one: variants, copies, allocator.
    search
        How the planner came to the plan.
    options
        The options that the planner was called with.
    """

    workload: WorkloadRef
    budget_bytes: int
    planner: str
    options: Mapping[str, Any]
    status: Status
    peak_bytes: int | None
    static_bytes: int
    makespan_s: float | None
    store_all_s: float
    overhead: float | None
    lower_bound_s: float
    bound_scope: Scope
    gap: float | None
    planning_s: float
    schedule: Schedule | None
    least: LeastBudget = field(default_factory=LeastBudget)
    candidates: tuple[Candidate, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    seed: int | None = None
    setting: Setting = PLAIN
    search: SearchRecord = NO_SEARCH

    def __post_init__(self) -> None:
        # A schedule with variants is legal on the plain workload too, but costs something else
        # there. So the schedule itself says that it needs its plan.
        needs = self.setting.words(self.schedule)
        if self.schedule is not None and self.schedule.runs_with != needs:
            marked = Schedule(self.schedule.op_names, self.schedule.runs, needs)
            object.__setattr__(self, "schedule", marked)

    @property
    def found_by(self) -> str:
        """The planner that found the schedule, among those that were tried."""
        return self.search.chosen or self.planner

    @property
    def variants(self) -> tuple[ChosenVariant, ...]:
        """The variants that the schedule runs with."""
        return self.setting.variants

    @checked
    def simulate(
        self, workload: Chain | Graph, capacities: Mapping[str, int] | None = None
    ) -> Simulation:
        """The cost of the plan's schedule on `workload`, for which the plan was made.

        Parameters
        ----------
        workload
            The workload as it was given to the planner; the plan adds its variants and copies.
        capacities
            Memory pool -> bytes: runs wait until their memory fits. Replaces the plan's own
            capacities.

        Raises
        ------
        SchedsimError
            The plan has no schedule.
        InvalidScheduleError
            The schedule is not legal on the workload.
        """
        if self.schedule is None:
            raise SchedsimError("the plan has no schedule", hint="plan again with a larger budget")
        return self.setting.simulate(
            workload, self.schedule, self.budget_bytes, capacities=capacities
        )

    @property
    def feasible(self) -> bool:
        """Whether there is a schedule within the budget."""
        return self.schedule is not None

    @property
    def min_feasible_bytes(self) -> int | None:
        """The least budget at which this planner finds a schedule; ``None`` where unknown."""
        return self.least.found_bytes

    @property
    def binding_op(self) -> str | None:
        """The op that sets `min_feasible_bytes`; ``None`` where unknown."""
        return self.least.op

    @property
    def proven_infeasible(self) -> bool:
        """Whether it is proven that no schedule of ``least.scope`` is within the budget."""
        return self.schedule is None and self.least.refutes(self.budget_bytes)

    @cached_property
    def row(self) -> Candidate:
        """The plan as a row of a comparison."""
        return Candidate(
            planner=self.planner,
            status=self.status,
            peak_bytes=self.peak_bytes,
            makespan_s=self.makespan_s,
            overhead=self.overhead,
            lower_bound_s=self.lower_bound_s,
            bound_scope=self.bound_scope,
            min_feasible_bytes=self.min_feasible_bytes,
            planning_s=self.planning_s,
        )

    def __str__(self) -> str:
        head = f"{self.workload.name}, budget {format_bytes(self.budget_bytes)}: {self.status}"
        lines = [f"{head} ({self.planner})"]
        if self.makespan_s is None or self.peak_bytes is None or self.overhead is None:
            if self.min_feasible_bytes is not None:
                lines.append(f"  {self.least.sentence(self.binding_op or '')}")
            return "\n".join(lines)
        lines.append(f"  peak         {format_bytes(self.peak_bytes)}")
        lines.append(f"  step time    {format_seconds(self.makespan_s)} ({self.overhead:+.2%})")
        lines.append(
            f"  lower bound  {format_seconds(self.lower_bound_s)} over {self.bound_scope}"
            f" (gap {self.gap:.2%})"
        )
        return "\n".join(lines)


def make_plan(
    workload: Chain | Graph,
    budget_bytes: int,
    schedule: Schedule | None,
    *,
    planner: str,
    options: Mapping[str, Any] | None = None,
    lower_bound_s: float = 0.0,
    bound_scope: Scope = ANY_SCHEDULE,
    least: LeastBudget = _UNKNOWN,
    seed: int | None = None,
    setting: Setting = PLAIN,
    search: SearchRecord = NO_SEARCH,
) -> Plan:
    """The plan for `schedule`, after replaying it; every planner ends with this call.

    Parameters
    ----------
    schedule
        ``None`` where the planner found none within the budget.
    lower_bound_s
        A proven bound over `bound_scope`. The time that every schedule needs is a bound anyway:
        store-all for a chain, the busiest stream for a graph.
    setting
        How the workload that `schedule` runs on differs from `workload`: variants, copies.
    search
        How `schedule` was found.
    least
        The least budget at which the planner is known to find a schedule. It is ignored where the
        plan fits with a lower peak.

    Raises
    ------
    AssertionError
        The schedule is over budget in the replay: the planner is wrong.
    """
    if lower_bound_s <= workload.busiest_stream_s:
        lower_bound_s, bound_scope = workload.busiest_stream_s, ANY_SCHEDULE
    simulation = None
    if schedule is not None:
        simulation = setting.simulate(workload, schedule, budget_bytes)
    status: Status = "infeasible"
    if simulation is not None:
        least = least_of([least], peak_bytes=simulation.peak_bytes)
        if simulation.peak_bytes > budget_bytes:
            raise AssertionError(
                f"{planner} planned {simulation.peak_bytes} bytes for a budget of {budget_bytes}"
            )
        # Sums of floats taken in another order may differ in the last bits.
        lower_bound_s = min(lower_bound_s, simulation.makespan_s * (1 + OPTIMALITY_TOLERANCE))
        met = simulation.makespan_s <= lower_bound_s * (1 + OPTIMALITY_TOLERANCE)
        status = "optimal" if met else "feasible"
        if met:
            lower_bound_s = simulation.makespan_s
    return Plan(
        workload=WorkloadRef(workload.name, workload.kind, workload_hash(workload)),
        budget_bytes=budget_bytes,
        planner=planner,
        options=dict(options or {}),
        status=status,
        peak_bytes=simulation.peak_bytes if simulation else None,
        static_bytes=workload.static_bytes,
        makespan_s=simulation.makespan_s if simulation else None,
        store_all_s=workload.store_all_s,
        overhead=_overhead(workload, simulation),
        lower_bound_s=lower_bound_s,
        bound_scope=bound_scope,
        gap=_gap(simulation, lower_bound_s),
        planning_s=0.0,  # `timed` knows
        least=least,
        schedule=schedule,
        candidates=(),
        versions=installed_versions(),
        seed=seed,
        setting=setting if schedule is not None else replace(setting, variants=()),
        search=search,
    )


def _overhead(workload: Chain | Graph, simulation: Simulation | None) -> float | None:
    """Extra time relative to store-all of `workload` itself, whatever variants ran."""
    if simulation is None:
        return None
    if not workload.store_all_s:
        return 0.0
    overhead = simulation.makespan_s / workload.store_all_s - 1.0
    # The engine adds the same times in another order: a negative rounding error is no overhead.
    return 0.0 if -1e-9 < overhead < 0.0 else overhead


def _gap(simulation: Simulation | None, lower_bound_s: float) -> float | None:
    if simulation is None:
        return None
    return max(0.0, simulation.makespan_s / lower_bound_s - 1.0) if lower_bound_s else 0.0


def best_of(
    workload: Chain | Graph,
    budget_bytes: int,
    schedules: Iterable[tuple[Mapping[str, Any], Schedule]],
    *,
    planner: str,
    seed: int | None = None,
) -> Plan:
    """The plan of the fastest of `schedules` that fits, for heuristics that try several schedules.

    The lowest peak of these schedules is the least budget found.
    """
    best: tuple[float, int, Mapping[str, Any], Schedule] | None = None
    least: Simulation | None = None
    for options, schedule in schedules:
        simulation = simulate(workload, schedule)
        if least is None or simulation.peak_bytes < least.peak_bytes:
            least = simulation
        rank = (simulation.makespan_s, simulation.peak_bytes)
        if simulation.peak_bytes <= budget_bytes and (best is None or rank < best[:2]):
            best = (*rank, options, schedule)
    return make_plan(
        workload,
        budget_bytes,
        best[3] if best else None,
        planner=planner,
        options=best[2] if best else None,
        least=LeastBudget(least.peak_bytes, least.peak_op) if least else _UNKNOWN,
        seed=seed,
    )


def with_candidates(plan: Plan, tried: Iterable[Plan]) -> Plan:
    """`plan` with one row per plan in `tried`."""
    return replace(plan, candidates=tuple(other.row for other in tried))


def timed(
    warm_up: Callable[[], object] | None = None,
) -> Callable[[Callable[Asked, Answer]], Callable[Asked, Answer]]:
    """Decorate a planner so that its plans say how long it took (``planning_s``).

    Seconds in which kernels are compiled, the first time on a machine, are not counted.

    Parameters
    ----------
    warm_up
        Called first and not counted: it loads the planner's kernels.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Answer:
    ...     planning_s: float = 0.0
    >>> timed()(Answer)().planning_s > 0.0
    True
    """

    def decorate(planner: Callable[Asked, Answer]) -> Callable[Asked, Answer]:
        @wraps(planner)
        def planned(*args: Asked.args, **kwargs: Asked.kwargs) -> Answer:
            if warm_up is not None:
                warm_up()
            started = compile_clock.without()
            answer: Any = planner(*args, **kwargs)
            timed_answer: Answer = replace(answer, planning_s=compile_clock.without() - started)
            return timed_answer

        return planned

    return decorate


def installed_versions() -> dict[str, str]:
    """Versions of schedsim, Python and numpy, as plans record them."""
    return dict(_versions())


@cache
def _versions() -> tuple[tuple[str, str], ...]:
    """Read once, because looking up versions takes longer than many plans."""
    import platform  # these two are slow to import, and only plans need them
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for package in ("schedsim", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return tuple(found.items())

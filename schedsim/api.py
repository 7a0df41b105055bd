"""The calls that most programs need: `plan`, `simulate`, `compare`."""

from __future__ import annotations

import difflib
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .checks.checked_arguments import check_arguments, checked
from .checks.value_checks import MAX_SECONDS, shown
from .dataflow.chain import Chain
from .dataflow.graph import Graph
from .dataflow.recomputation_rules import (
    RecomputationRules,
    check_beside_recompute,
    check_evicted,
    evicts_some,
    keeps_some,
)
from .errors import (
    InfeasibleBudgetError,
    MissingDependencyError,
    PlannerLimitError,
    PlannerSkippedWarning,
    SchedsimError,
    UnsupportedError,
)
from .files.workload_files import workload_hash
from .plans.budgets import read_budget
from .plans.certificate import Certificate
from .plans.claims import check_belongs
from .plans.outside import checked_plan
from .plans.plan import Plan, WorkloadRef
from .plans.progress import searching
from .plans.scope import Scope
from .simulation.result import Simulation
from .simulation.schedule import Schedule
from .simulation.simulator import simulate as run_schedule
from .units import format_bytes
from .workloads.given import WorkloadLike, read_workload

if TYPE_CHECKING:
    # For mypy alone, which checks each package by itself: these names are of `schedsim.algorithms`.
    PlannerInfo = Any

PlannerLike = str | Callable[..., Any]
"""A planner by name, or the function itself: ``(workload, budget_bytes, *, options)``."""


@checked
def plan(
    workload: WorkloadLike,
    budget_bytes: int | str,
    planner: PlannerLike | None = None,
    *,
    allocator: str | None = None,
    allocator_options: Mapping[str, Any] | None = None,
    keep: str | Sequence[str] | None = None,
    recompute: str | Sequence[str] | None = None,
    **options: Any,
) -> Plan:
    """The plan of `planner` for `workload` within `budget_bytes`.

    Parameters
    ----------
    workload
        A chain or a graph; the path of a file that holds one; or ``"workload:NAME,OPTION=VALUE"``,
        a workload that another package provides.
    budget_bytes
        Bound on the simulated peak, static bytes included: an ``int``, a text like ``"8GB"``, or a
        share of the store-all peak, ``"60%"``.
    planner
        A name from `schedsim.algorithms.planner_names`; or a function ``(workload, budget_bytes, *,
        options)`` that returns a `Schedule`, a `Plan`, or ``None`` where nothing fits. What the
        function returns is replayed before it is believed. The default is ``auto``, the strongest
        method that ends in time.
    allocator
        With ``"exact"`` the budget bounds the bytes of tensors and workspaces. With any other
        allocator (see `schedsim.allocate`) it bounds the bytes that this allocator reserves for
        them. The default is ``"cuda-caching"`` for a step captured on a CUDA device, with the
        settings that the device's allocator had during the capture, and ``"exact"`` for every other
        workload and for plans with copies.
    allocator_options
        Options of the allocator, as `schedsim.allocate` takes them.
    keep, recompute
        Patterns over the names of ops, of the modules that ops are in, or of stages. An op to keep
        runs once. The outputs of an op to recompute are not held from the forward to the backward;
        a stage to recompute keeps its output alone. An op named by both is kept. A planner that
        cannot follow the patterns refuses.
    **options
        Options of the planner. With ``link="pcie4"`` (``"pcie5"``, ``"nvlink-c2c"``, ``"25GB/s"``,
        a `schedsim.plans.links.Link`, or a pair of these), ``auto`` also offloads to host memory,
        to at most ``host_bytes`` of it; every copy takes ``host_latency_s`` besides its transfer.

    Returns
    -------
    Plan
        Feasible: its schedule has been replayed and fits.

    Raises
    ------
    InfeasibleBudgetError
        The planner finds no schedule that fits; the error carries the plan and the least budget.

    Examples
    --------
    >>> import schedsim
    >>> chain = schedsim.Chain.from_arrays("two", 4, forward_s=[1, 1], backward_s=[2, 2],
    ...                                    output_bytes=[4, 4], saved_bytes=[10, 10])
    >>> schedsim.plan(chain, 26).makespan_s
    7.0
    >>> schedsim.plan(chain, 26, link="16B/s").makespan_s  # some of it goes to the host and back
    6.375
    """
    workload = read_workload(workload)
    result = try_plan(
        workload,
        budget_bytes,
        planner,
        allocator=allocator,
        allocator_options=allocator_options,
        keep=keep,
        recompute=recompute,
        **options,
    )
    if not result.feasible:
        name, by = workload.name, get_planner(planner).name
        budget = format_bytes(result.budget_bytes)
        says = f"{name} does not fit {budget} with {by}"
        search = getattr(result, "search", None)  # a pipeline's plan has none of its own
        if search is not None and search.interrupted:
            says = f"{by} was interrupted before it had a plan of {name} within {budget}"
        raise InfeasibleBudgetError(
            says,
            plan=result,
            hint=_least_hint(result),
        )
    return result


def _least_hint(plan: Plan) -> str:
    """The least budget, to the byte, so that it can be typed in as it stands."""
    if plan.min_feasible_bytes is None:
        return ""
    return plan.least.hint(f"budget_bytes={plan.min_feasible_bytes}", plan.least.op or "")


@checked
def simulate(
    workload: WorkloadLike,
    schedule: Schedule | Plan,
    capacities: Mapping[str, int] | None = None,
) -> Simulation:
    """The cost of a schedule or a plan on `workload`, after a check that the schedule is legal.

    An instance of a tensor lives from the start of the run that writes it to the end of the last
    run that reads it before it is written again. During a run, static bytes, every live instance,
    the outputs and the workspace are charged; nothing else is. Schedules on several streams are
    simulated event by event: see `schedsim.simulation.engine` for when a run starts.

    Parameters
    ----------
    workload
        A workload as `plan` takes it; a chain is lowered to its graph. For a plan, the workload
        that it was made for.
    schedule
        Op runs in order; each stream runs its own ops in that order. Or a plan, whose schedule runs
        on the workload with the variants and copies of the plan.
    capacities
        Memory pool -> bytes: a run waits until its memory fits. A pool without a capacity, as all
        pools are by default, holds whatever the schedule puts there; a plan brings its own
        capacities.

    Returns
    -------
    Simulation

    Raises
    ------
    InvalidScheduleError
        An op is unknown, an input is missing, a ``once`` op runs twice or an op never runs; or the
        plan is of another workload.
    DeadlockError
        No run can start any more within the capacities; the error says which runs wait for which,
        and which tensors hold the memory.

    Notes
    -----
    O(runs + reads + writes) time and memory. On several streams the time grows by a factor
    log(streams), and by more where many runs wait for memory.

    Examples
    --------
    >>> import schedsim
    >>> chain = schedsim.Chain.from_arrays("two", 4, forward_s=[1, 1], backward_s=[2, 2],
    ...                                    output_bytes=[4, 4], saved_bytes=[10, 10])
    >>> schedsim.simulate(chain, schedsim.Schedule.store_all(chain)).peak_bytes
    32
    >>> plan = schedsim.plan(chain, 26, link="16B/s")
    >>> schedsim.simulate(chain, plan).makespan_s == plan.makespan_s
    True
    """
    workload = read_workload(workload)
    if isinstance(schedule, Plan):
        check_belongs(schedule, workload)
        return schedule.simulate(workload, capacities)
    if isinstance(schedule, Schedule):
        check_evicted(workload.graph, schedule)
        if schedule.runs_with:
            raise SchedsimError(
                f"the schedule is of a plan with {schedule.runs_with}, which the workload lacks",
                hint="simulate(workload, plan), or plan.simulate(workload)",
            )
        return run_schedule(workload, schedule, capacities)
    raise SchedsimError(
        f"{type(schedule).__name__} is neither a schedule nor a plan",
        hint="Schedule.from_names(['F0', ...]), or what schedsim.plan returned",
    )


@checked
def try_plan(
    workload: WorkloadLike,
    budget_bytes: int | str,
    planner: PlannerLike | None = None,
    *,
    allocator: str | None = None,
    allocator_options: Mapping[str, Any] | None = None,
    keep: str | Sequence[str] | None = None,
    recompute: str | Sequence[str] | None = None,
    **options: Any,
) -> Plan:
    """Like `plan`, but an infeasible budget gives a plan with status ``infeasible``."""
    check_limits(options)
    workload = read_workload(workload)
    info = get_planner(planner, workload.kind)
    if info.needs_link and options.get("link") is None:
        raise UnsupportedError(
            f"planner {info.name!r} offloads, and needs a link",
            hint="link='pcie4', or a bandwidth like '25GB/s'",
        )
    if workload.kind not in info.kinds:
        raise UnsupportedError(
            f"planner {info.name!r} does not take a {workload.kind}",
            hint="`schedsim planners` lists what each planner takes",
        )
    if isinstance(workload, Graph) and not workload.one_stream:
        raise UnsupportedError(
            f"{workload.name} has several streams or pools: it can be simulated, not planned",
            hint="planners that offload take the graph without copies, and add them",
        )
    check_options(info, options)
    asked_bytes = read_budget(budget_bytes, workload)
    given, rules = workload, RecomputationRules.of(keep, recompute)
    if rules:
        workload = _ruled(given, rules)
    _check_rules(info, workload, options)
    if allocator is None:
        allocator, own = _own_allocator(given, info, options)
        allocator_options = {**own, **(allocator_options or {})}
    if allocator == "exact":
        return _with_rules(_run(info, workload, asked_bytes, options), given, rules)
    from .allocators.planning import plan_reserved

    found = plan_reserved(
        workload,
        asked_bytes,
        lambda planned, inner_bytes: _run(info, planned, inner_bytes, options),
        allocator,
        **(allocator_options or {}),
    )
    return _with_rules(found, given, rules)


def _ruled(workload: Chain | Graph, rules: RecomputationRules) -> Chain | Graph:
    """`workload` with `rules`, which exist for chains and graphs alone."""
    if not isinstance(workload, Chain | Graph):
        raise UnsupportedError(
            f"keep and recompute take chains and graphs; {workload.name} is a {workload.kind}"
        )
    return rules.of_workload(workload)


def _check_rules(info: PlannerInfo, workload: Chain | Graph, options: Mapping[str, Any]) -> None:
    """Refuse a planner, or options, that would break the rules of `workload`."""
    if not isinstance(workload, Chain | Graph):
        return
    asked = [
        rule
        for rule, is_there in (
            ("keep", keeps_some(workload)),
            ("recompute", evicts_some(workload)),
        )
        if is_there
    ]
    if isinstance(workload, Chain) and info.function is None:
        for rule in asked:
            if rule not in info.chain_rules:
                raise UnsupportedError(
                    f"planner {info.name!r} cannot follow {rule} on a chain",
                    hint=f"{_listed(rule)} do",
                )
    if "recompute" not in asked:
        return
    check_beside_recompute({"link": info.needs_link, **options})


def _listed(rule: str) -> str:
    """The planners that follow `rule` on a chain, in words."""
    from .algorithms import PLANNERS

    names = [name for name, info in PLANNERS.items() if rule in info.chain_rules]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _with_rules(plan: Plan, given: Chain | Graph, rules: RecomputationRules) -> Plan:
    """`plan`, made for `given` with `rules`, as a plan for `given` whose scopes name the rules."""
    if not rules:
        return plan

    def ruled(scope: Scope) -> Scope:
        return replace(scope, ruled=not scope.other)

    return replace(
        plan,
        workload=WorkloadRef(given.name, given.kind, workload_hash(given)),
        setting=replace(plan.setting, rules=rules),
        bound_scope=ruled(plan.bound_scope),
        least=replace(plan.least, scope=ruled(plan.least.scope)),
        candidates=tuple(
            replace(row, bound_scope=ruled(row.bound_scope)) for row in plan.candidates
        ),
    )


def _own_allocator(
    workload: Chain | Graph, info: PlannerInfo, options: Mapping[str, Any]
) -> tuple[str, Mapping[str, Any]]:
    """The default allocator for `workload`, and its options."""
    recorded = getattr(workload, "recorded", None)  # pipelines have none
    copies = info.needs_link or any(options.get(name) for name in ("link", "levels", "allow"))
    if recorded is None or copies:
        return "exact", {}
    return "cuda-caching", recorded.allocator_options


def _run(
    info: PlannerInfo, workload: Chain | Graph, budget_bytes: int, options: Mapping[str, Any]
) -> Plan:
    function = info.load()
    started = time.perf_counter()
    with searching(f"{workload.name} within {format_bytes(budget_bytes)} by {info.name}"):
        if isinstance(workload, Graph) and not info.evicts and evicts_some(workload):
            from .algorithms.graphs.forced_recomputation import with_recomputed

            found = with_recomputed(
                workload, budget_bytes, lambda graph, room: function(graph, room, **options)
            )
        else:
            found = function(workload, budget_bytes, **options)
    if info.function is None:  # schedsim's own planners end with a replay
        own: Plan = found
        return own
    plan = checked_plan(found, workload, budget_bytes, planner=info.name, options=options)
    return replace(plan, planning_s=time.perf_counter() - started)


@checked
def certify(workload: WorkloadLike, plan: Plan, **limits: Any) -> Certificate:
    """A certificate of `plan`, with proofs: see `schedsim.algorithms.certificates.certify`.

    Parameters
    ----------
    workload
        The workload that the plan was made for.
    plan
        A plan on exact bytes and one stream, without variants.
    **limits
        Limits of the search for a proof: ``effort``, ``time_limit_s`` and ``max_leaves``.

    Raises
    ------
    UnsupportedError
        The plan has copies, variants or an allocator, which no certificate covers.

    Examples
    --------
    >>> import schedsim
    >>> chain = schedsim.Chain.from_arrays("two", 4, forward_s=[1, 1], backward_s=[2, 2],
    ...                                    output_bytes=[4, 4], saved_bytes=[10, 10])
    >>> schedsim.certify(chain, schedsim.plan(chain, 26)).optimal
    True
    """
    from .algorithms.certificates import certify as prove

    found: Certificate = prove(read_workload(workload), plan, **limits)
    return found


def check_options(info: PlannerInfo, options: Mapping[str, Any]) -> None:
    """Refuse options that planner `info` does not take, and gaps above 1.

    Raises
    ------
    SchedsimError
        The hint names the planner's option with the nearest name, or all its options.
    """
    takes = info.options()
    check_arguments(info.load(), options)
    for name in options:
        if name not in takes and not info.takes_any():
            near = difflib.get_close_matches(name, takes, n=1)
            able = f"it takes {', '.join(sorted(takes))}" if takes else "it takes no options"
            raise SchedsimError(
                f"planner {info.name!r} does not take {name}",
                hint=f"did you mean {near[0]}? {able}" if near else able,
            )
    gap = options.get("gap")
    if isinstance(gap, int | float) and gap > 1 and "gap" in takes:
        raise SchedsimError(
            f"gap {gap:g} is {gap:.0%}: it is a share of the bound, at most 1",
            hint=f"gap={gap / 100:g} is {gap:g} %",
        )


@checked
def compare(
    workload: WorkloadLike,
    budget_bytes: int | str,
    planners: Sequence[PlannerLike] | None = None,
    *,
    keep: str | Sequence[str] | None = None,
    recompute: str | Sequence[str] | None = None,
    **link: Any,
) -> list[Plan]:
    """One plan per planner, infeasible ones included, in the order given.

    By default all planners run that take the workload, except ``auto``, which chooses among them,
    and ``exhaustive``, which is for tiny workloads. Planners that offload run where a `link` is
    given (with `host_bytes` and `host_latency_s`, see `plan`). A `PlannerSkippedWarning` says which
    planners were left out: the workload is too large for them, they cannot follow `keep` and
    `recompute`, or their extra is not installed.

    Examples
    --------
    >>> import schedsim
    >>> chain = schedsim.Chain.from_arrays("two", 4, forward_s=[1, 1], backward_s=[2, 2],
    ...                                    output_bytes=[4, 4], saved_bytes=[10, 10])
    >>> [plan.status for plan in schedsim.compare(chain, 26, ["store_all", "rotor"])]
    ['infeasible', 'optimal']
    """
    plans = []
    workload = read_workload(workload)
    # Checked once here: a pattern that names nothing is an error of the call, not a reason to skip
    # every planner.
    RecomputationRules.of(keep, recompute).of_workload(workload)
    for planner in planners or comparable(workload, link="link" in link):
        info = get_planner(planner, workload.kind)
        taken = info.options()
        options = {key: value for key, value in link.items() if key in taken}
        try:
            plan = try_plan(
                workload, budget_bytes, planner, keep=keep, recompute=recompute, **options
            )
        except (PlannerLimitError, MissingDependencyError, UnsupportedError) as error:
            warnings.warn(f"{info.name} left out: {error}", PlannerSkippedWarning, stacklevel=2)
            continue
        if plan.search.interrupted:
            raise KeyboardInterrupt  # half a search is no row
        plans.append(plan)
    return plans


def comparable(workload: Chain | Graph, *, link: bool = False) -> list[str]:
    """Names of the planners that a comparison runs by default on `workload`, with a link or not."""
    from .algorithms import all_planners

    return [
        name
        for name, info in all_planners().items()
        if info.compared and workload.kind in info.kinds and (link or not info.needs_link)
    ]


def get_planner(planner: PlannerLike | None = None, kind: str = "chain") -> PlannerInfo:
    """The row of `planner` in the table of planners; ``None`` gives the default for `kind`."""
    from . import algorithms

    return algorithms.get_planner(planner, kind)


def curve_planner(kind: str) -> PlannerInfo:
    """The planner that finds the whole memory/time curve of a workload of `kind`."""
    from .algorithms import registry

    return registry.curve_planner(kind)


def check_limits(options: Mapping[str, Any]) -> None:
    """Refuse a time limit or a gap at which no search could stop.

    Raises
    ------
    SchedsimError
        ``time_limit_s`` or ``gap`` is not finite, or negative.
    """
    for name, flag in (("time_limit_s", "seconds"), ("gap", "a share: 0.01 is 1 %")):
        value = options.get(name)
        if value is None:
            continue
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and MAX_SECONDS < value < math.inf:
            raise SchedsimError(
                f"{name} {shown(value)} is more than any search takes", hint=f"give {flag}"
            )
        if not number or not 0 <= value < math.inf:
            raise SchedsimError(
                f"{name} {shown(value)} is not a finite number, zero or more", hint=f"give {flag}"
            )


def planner_takes(name: str) -> tuple[tuple[str, ...], frozenset[str]]:
    """The kinds of workload and the names of the options that planner `name` takes.

    Examples
    --------
    >>> planner_takes("rotor")[0]
    ('chain',)
    """
    info = get_planner(name)
    return info.kinds, info.options()

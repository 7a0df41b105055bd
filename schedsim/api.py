"""The calls that most programs need: plan and compare."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from .dataflow.chain import Chain
from .dataflow.graph import Graph
from .errors import (
    InfeasibleBudgetError,
    MissingDependencyError,
    PlannerLimitError,
    PlannerSkippedWarning,
    SchedsimError,
    UnsupportedError,
)
from .plans.plan import Plan
from .units import format_bytes, parse_bytes


def plan(
    workload: Chain | Graph,
    budget_bytes: int | str,
    planner: str = "auto",
    *,
    allocator: str = "exact",
    allocator_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Plan:
    """The plan of `planner` for `workload` within `budget_bytes`.

    Parameters
    ----------
    workload
        A chain or a graph.
    budget_bytes
        Bounds the simulated peak, static bytes included; an ``int``, or a text like ``"8GB"``.
    planner
        A name from `schedsim.algorithms.PLANNERS`.
    allocator
        ``"exact"``: the budget bounds the bytes of tensors and workspaces. Any other (see
        `schedsim.allocate`): it bounds what that allocator reserves for them.
    allocator_options
        Of `schedsim.allocate`.
    **options
        Passed to the planner. With ``link="pcie4"`` (``"pcie5"``, ``"nvlink-c2c"``, ``"25GB/s"``, a
        `schedsim.plans.links.Link`, or a pair of these), ``auto`` offloads to host memory too, to
        at most ``host_bytes`` of it, with ``host_latency_s`` for every copy.

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
    result = try_plan(
        workload,
        budget_bytes,
        planner,
        allocator=allocator,
        allocator_options=allocator_options,
        **options,
    )
    if not result.feasible:
        least = result.min_feasible_bytes
        raise InfeasibleBudgetError(
            f"{workload.name} does not fit {format_bytes(result.budget_bytes)} with {planner}",
            plan=result,
            hint=f"the smallest feasible budget is {format_bytes(least)}" if least else "",
        )
    return result


def try_plan(
    workload: Chain | Graph,
    budget_bytes: int | str,
    planner: str = "auto",
    *,
    allocator: str = "exact",
    allocator_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Plan:
    """Like `plan`, but an infeasible budget gives a plan with status ``infeasible``."""
    from .algorithms import get_planner

    info = get_planner(planner)
    if info.needs_link and options.get("link") is None:
        raise UnsupportedError(
            f"planner {planner!r} offloads, and needs a link",
            hint="link='pcie4', or a bandwidth like '25GB/s'",
        )
    if workload.kind not in info.kinds:
        raise UnsupportedError(
            f"planner {planner!r} does not take a {workload.kind}",
            hint="`schedsim planners` lists what each planner takes",
        )
    if isinstance(workload, Graph) and not workload.one_queue:
        raise UnsupportedError(
            f"{workload.name} has several queues or memory pools: it can be simulated, not planned",
            hint="planners that offload take the graph without copies, and add them",
        )
    function = info.load()
    if allocator == "exact":
        return function(workload, _budget(budget_bytes), **options)
    from .allocators.planning import plan_reserved

    return plan_reserved(
        workload,
        _budget(budget_bytes),
        lambda inner_bytes: function(workload, inner_bytes, **options),
        allocator,
        **(allocator_options or {}),
    )


def compare(
    workload: Chain | Graph,
    budget_bytes: int | str,
    planners: Sequence[str] | None = None,
    **link: Any,
) -> list[Plan]:
    """One plan per planner, infeasible ones included, in the order given.

    By default every planner that takes the workload, but for ``auto`` and ``exhaustive``, and for
    those that offload where no `link` is given (with `host_bytes` and `host_latency_s`, as of
    `plan`). A planner for which the workload is too large, or whose extra is not installed, is left
    out, with a `PlannerSkippedWarning`.

    Examples
    --------
    >>> import schedsim
    >>> chain = schedsim.Chain.from_arrays("two", 4, forward_s=[1, 1], backward_s=[2, 2],
    ...                                    output_bytes=[4, 4], saved_bytes=[10, 10])
    >>> [plan.status for plan in schedsim.compare(chain, 26, ["store_all", "rotor"])]
    ['infeasible', 'optimal']
    """
    plans = []
    from .algorithms import get_planner

    for name in planners or comparable(workload, link="link" in link):
        taken = get_planner(name).options()
        options = {key: value for key, value in link.items() if key in taken}
        try:
            plans.append(try_plan(workload, budget_bytes, name, **options))
        except (PlannerLimitError, MissingDependencyError, UnsupportedError) as error:
            warnings.warn(f"{name} left out: {error}", PlannerSkippedWarning, stacklevel=2)
    return plans


def comparable(workload: Chain | Graph, *, link: bool = False) -> list[str]:
    """Names of the planners that a comparison runs by default on `workload`, with a link or not."""
    from .algorithms import PLANNERS

    names = (
        name
        for name, info in PLANNERS.items()
        if workload.kind in info.kinds and (link or not info.needs_link)
    )
    return [name for name in names if name not in ("auto", "exhaustive")]


def _budget(value: int | str) -> int:
    if isinstance(value, str):
        return parse_bytes(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise SchedsimError(
            f"budget {value!r} is not a number of bytes",
            hint="give an int of bytes, or a text like '8GB'",
        )
    return value


def planner_takes(name: str) -> tuple[tuple[str, ...], frozenset[str]]:
    """The kinds of workload and the names of the options that planner `name` takes.

    Examples
    --------
    >>> planner_takes("rotor")[0]
    ('chain',)
    """
    from .algorithms import get_planner

    info = get_planner(name)
    return info.kinds, info.options()

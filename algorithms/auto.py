"""The planner that most users want: exact where it can be, proven where it cannot."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from schedsim.dataflow.chain import Chain
from schedsim.dataflow.graph import Graph
from schedsim.dataflow.recomputation_rules import evicts_some, keeps_some
from schedsim.dataflow.variants import check_allowed, graph_options
from schedsim.errors import SchedsimError, UnsupportedError
from schedsim.plans.effort import ENDED_BY, Effort
from schedsim.plans.least_budget import least_of
from schedsim.plans.offloading import LinkLike
from schedsim.plans.plan import Plan, make_plan, timed, with_candidates
from schedsim.plans.scope import ANY_SCHEDULE
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import simulate

from .chains._demand_search import MAX_STAGES as MOST_SEARCHED
from .chains.beyond_persistent import faster_schedule, with_bound
from .chains.bisection import bisection
from .chains.chain_optimum import optimum_plan
from .chains.chen import chen_greedy
from .chains.frontier import frontier
from .chains.periodic import SPREAD_FROM, periodic
from .chains.persistent import MAX_STAGES, WorkLimitReached
from .chains.revolve import revolve
from .chains.rotor import rotor
from .chains.sweep_bound import MOST_STAGES as MOST_SWEPT
from .exhaustive import plan_within_states
from .graphs._chain_form import chain_form, chain_start, is_lowered
from .graphs._cut_table import Order
from .graphs.hierarchical import LARGE, blocks_repeat, hierarchical
from .graphs.local_search import local_search
from .graphs.variant_search import variant_search
from .offload.offload import offload
from .store_all import store_all

# On a chain, the gap to the proven bound and the work at which to stop, where none is asked for.
_CHAIN_GAP, _CHAIN_WORK = 0.01, 10.0

# The most units of a given effort that are spent on schedules of a chain beyond the persistent
# ones, unless an order asks for any schedule.
_BEYOND = 2.0

# Graphs of at most so many ops are searched exactly first, by so many states, and for each unit of
# effort by so many more, up to so many.
_SMALL, _FEW_STATES, _STATES_PER_UNIT, _MOST_STATES = 40, 250, 1500, 3000

# The share of the work on schedules beyond the persistent ones that the exact search gets first;
# with many stages that search rarely comes to its end.
_EXACT_SHARE, _MANY_STAGES_SHARE, _MANY_STAGES = 0.5, 0.25, 32


@timed()
def auto(
    workload: Chain | Graph,
    budget_bytes: int,
    *,
    gap: float | None = None,
    time_limit_s: float | None = None,
    effort: Effort | float | None = None,
    order: Order | None = None,
    seed: int = 0,
    max_moves: int | None = None,
    allow: Collection[str] = (),
    link: LinkLike | None = None,
    host_bytes: int | str | None = None,
    host_latency_s: float | None = None,
) -> Plan:
    """The best plan within `budget_bytes`, by the strongest method that is in time.

    The planner returns store-all where that fits. On a chain it then takes the exact frontier;
    where that has too many break points, rotor with as many slots as the gap asks for; beyond
    `MAX_STAGES` stages, the best of the heuristics. These take an instant and keep to persistent
    schedules. On up to 62 stages short searches then look for a better schedule of any kind, at
    budgets of a ladder, so that more memory never costs time; on up to 12 they find the best. Where
    an effort or a time limit is given, searches over all schedules go on from there for at most two
    units of it, and for all of it where an `order` is given: `chain_optimum` on up to 62 stages,
    then `local_search`. In both cases the candidates state the bound over any schedule beside the
    bound over the persistent ones. On a graph of at most 40 ops `exhaustive` comes first, for
    at most 3,000 states, and fewer by little effort. On others, and where the states do not
    suffice, the planner takes `local_search` beside the bound of `cuts`. A graph that is a
    chain goes to `chain_optimum` first; a large graph that is a line of blocks goes to
    `hierarchical`, whose schedule the search starts from. Where a link is given, the planner
    takes `offload`, which begins with all of these.
    The plan's candidates list what was tried.

    Parameters
    ----------
    gap
        Gap to the proven bound at which to stop; by default 0.01 on a chain, none on a graph.
    time_limit_s, effort
        Seconds, or work, as of `rotor`, `local_search` and `offload`.
    order, seed
        As of `local_search`; the order of a graph is fixed by default. A chain has one order: to
        give an order for a chain asks for any schedule, persistent or not.
    max_moves
        As of `local_search` and `offload`; a chain without a link has no use for it.
    allow
        Kinds of variants that may be chosen, of `schedsim.dataflow.variants.VARIANT_KINDS`; none by
        default.
    link, host_bytes, host_latency_s
        The link to offload over, as of `offload`; tensors stay on the device by default.

    Raises
    ------
    SchedsimError
        An order was asked for, and there is a link, or there are variants of a chain; or host
        memory was given without a link.

    Examples
    --------
    >>> from schedsim import Chain
    >>> chain = Chain.from_arrays("four", 1, forward_s=[1] * 4, backward_s=[1] * 4,
    ...                           output_bytes=[1] * 4, saved_bytes=[1] * 4)
    >>> auto(chain, 6).makespan_s, auto(chain, 7).candidates[0].planner
    (9.0, 'store_all')
    """
    if link is not None:
        if allow:
            raise SchedsimError(
                "variants are allowed, and there is a link",
                hint="no planner does both: leave one of the two out",
            )
        return _with_copies(
            workload,
            budget_bytes,
            order,
            link=link,
            host_bytes=host_bytes,
            host_latency_s=host_latency_s,
            gap=0.0 if gap is None else gap,
            time_limit_s=time_limit_s,
            effort=effort,
            seed=seed,
            max_moves=max_moves,
        )
    if host_bytes is not None or host_latency_s is not None:
        raise SchedsimError("host memory is given, and no link to it", hint="link='pcie4'")
    if isinstance(workload, Graph):
        return _of_graph(
            workload,
            budget_bytes,
            Effort.of(effort, time_limit_s, moves=max_moves),
            {"order": order or "fixed", "seed": seed, "gap": 0.0 if gap is None else gap},
            check_allowed(allow),
        )
    if order is not None and allow:
        raise SchedsimError(
            f"order {order!r} is asked for a chain, with variants",
            hint="the search over any schedule chooses no variants: leave one of the two out",
        )
    chain, allow = workload, check_allowed(allow)
    most = 0.0 if (effort is None and time_limit_s is None) or allow else _BEYOND
    most = most if order is None else math.inf
    search = {"seed": seed, "gap": 0.0 if gap is None else gap}
    gap = _CHAIN_GAP if gap is None else gap
    effort = Effort.of(effort, time_limit_s, default=_CHAIN_WORK)
    evicts = evicts_some(chain)
    if evicts:
        most = 0.0  # the search over all schedules knows of nothing that must be recomputed
    tried = [] if evicts else [store_all(chain, budget_bytes)]
    if not any(plan.feasible for plan in tried):
        if (evicts or keeps_some(chain)) and chain.num_stages > MAX_STAGES:
            raise UnsupportedError(
                f"keep and recompute are held to on chains of at most {MAX_STAGES:,} stages",
                hint="group stages",
            )
        if chain.num_stages > MAX_STAGES:
            tried += [planner(chain, budget_bytes) for planner in (periodic, chen_greedy)]
            # The others need less memory and more time, and of a very long chain seconds to try.
            if chain.num_stages < SPREAD_FROM or not any(plan.feasible for plan in tried):
                tried += [planner(chain, budget_bytes) for planner in (bisection, revolve)]
        else:
            try:
                # About a tenth of what is allowed, by points merged in a second.
                work = int(2e7 * max(effort.left, 1.0))
                limits = {"max_points": 30_000_000, "max_work": work}
                tried.append(frontier(chain, budget_bytes, **limits, allow=allow))
            except WorkLimitReached:
                effort.spend(0.1 * effort.left)
                tried.append(rotor(chain, budget_bytes, gap=gap, effort=effort, allow=allow))
            if most:
                known = tried[-1].schedule
                effort = effort.take(most)
                tried += _over_all_schedules(chain, chain, budget_bytes, known, effort, search)
            elif tried[-1].feasible and not (allow or evicts):
                return _with_look(chain, tried)
    return _best("auto", tried)


def _with_look(chain: Chain, tried: list[Plan]) -> Plan:
    """The best of `tried`, or what a short search over all schedules finds below the last.

    Where the search finds none, its bound stands among the candidates, beside the bound over
    persistent schedules. Its length is part of the method: no given effort or limit ends it.
    """
    persistent = tried[-1]
    known, least_bytes = persistent.schedule, persistent.min_feasible_bytes
    if chain.num_stages > MOST_SWEPT or keeps_some(chain) or known is None:
        return _best("auto", tried)
    budget_bytes, known_s = persistent.budget_bytes, simulate(chain, known).makespan_s
    least_bytes = budget_bytes if least_bytes is None else least_bytes
    faster = None
    if chain.num_stages <= MOST_SEARCHED:
        faster = faster_schedule(chain, budget_bytes, known_s, least_bytes)
    looked = with_bound(chain, budget_bytes, faster or known)
    if _rank(looked)[:2] < _rank(persistent)[:2]:
        return _best("auto", [*tried, looked])
    return with_candidates(_best("auto", tried), [*tried, looked])


def _over_all_schedules(
    workload: Chain | Graph,
    chain: Chain,
    budget_bytes: int,
    known: Schedule | None,
    effort: Effort,
    options: dict[str, Any],
) -> list[Plan]:
    """Plans of `workload` from the searches over all schedules of `chain`, begun at a known one.

    The exact search comes first; where it does not come to its end, the annealing follows. In a
    chain every op needs the op before it: the fixed order is the only one, and what is proven over
    that order holds for any schedule. `workload` is `chain`, or a graph with the same ops in the
    same order.
    """
    plans, bound_s = [], 0.0
    if chain.num_stages <= MOST_SWEPT and not keeps_some(chain):
        with effort.part(_exact_share(chain)) as part:
            exact = optimum_plan(workload, chain, budget_bytes, known, part)
        plans.append(exact)
        if exact.status == "optimal" or exact.proven_infeasible:
            return plans
        bound_s = exact.lower_bound_s
    starts = () if known is None else (known,)
    graph = workload.graph if isinstance(workload, Chain) else workload
    found = local_search(graph, budget_bytes, effort=effort, starts=starts, **options)
    schedule = found.schedule
    if workload is chain and _repeats_backward(chain, schedule):
        # A model's backward adds its gradients, and may run once.
        once = _backward_once(graph)
        schedule = known or local_search(once, budget_bytes, effort=effort, **options).schedule
    return [*plans, _over_any_schedule(workload, found, schedule, bound_s)]


def _exact_share(chain: Chain) -> float:
    return _EXACT_SHARE if chain.num_stages <= _MANY_STAGES else _MANY_STAGES_SHARE


def _over_any_schedule(
    workload: Chain | Graph, found: Plan, schedule: Schedule | None, bound_s: float
) -> Plan:
    """`found`, of a chain or its graph, with `schedule`, and with the better of two bounds."""
    least = found.least
    if least.scope is not None:
        least = replace(least, scope=ANY_SCHEDULE)
    return make_plan(
        workload,
        found.budget_bytes,
        schedule,
        planner="local_search",
        options=found.options,
        lower_bound_s=max(found.lower_bound_s, bound_s),
        bound_scope=ANY_SCHEDULE,
        least=least,
        seed=found.seed,
        search=found.search,
    )


def _repeats_backward(chain: Chain, schedule: Schedule | None) -> bool:
    """Whether `schedule` runs the loss or a backward of `chain` a second time; O(runs)."""
    if schedule is None:
        return False
    counts = Counter(schedule.names)
    return counts["loss"] > 1 or any(counts[f"B{i}"] > 1 for i in range(chain.num_stages))


def _backward_once(graph: Graph) -> Graph:
    """`graph`, of a chain, in which only forward ops may run again."""
    ops = [op if op.phase == "forward" else replace(op, once=True) for op in graph.ops]
    return replace(graph, ops=tuple(ops))


def _of_graph(
    graph: Graph,
    budget_bytes: int,
    effort: Effort,
    options: dict[str, Any],
    allow: tuple[str, ...],
) -> Plan:
    tried = [store_all(graph, budget_bytes)]
    if not tried[0].feasible:
        if graph_options(graph, allow):
            tried += variant_search(graph, budget_bytes, allow, effort=effort, **options)
        elif (chain := chain_form(graph)) is not None:
            tried += _of_chain_graph(graph, chain, budget_bytes, effort, options)
        elif graph.num_ops >= LARGE and blocks_repeat(graph):
            tried.append(hierarchical(graph, budget_bytes, effort=effort, **options))
        else:
            tried.append(_of_small_or_any(graph, budget_bytes, effort, options))
    return _best("auto", tried)


def _of_small_or_any(
    graph: Graph,
    budget_bytes: int,
    effort: Effort,
    options: dict[str, Any],
    starts: tuple[Schedule, ...] = (),
) -> Plan:
    """The plan of a graph from the search, which solves small ones as far as states suffice."""
    if graph.num_ops <= _SMALL:
        most = int(min(_MOST_STATES, _FEW_STATES + _STATES_PER_UNIT * min(effort.left, 2.0)))
        found = plan_within_states(graph, budget_bytes, options["order"], effort, most)
        if isinstance(found, Plan):
            return found
        starts = starts if found is None else (*starts, found)
    return local_search(graph, budget_bytes, effort=effort, starts=starts, **options)


def _of_chain_graph(
    graph: Graph, chain: Chain, budget_bytes: int, effort: Effort, options: dict[str, Any]
) -> list[Plan]:
    """Plans of a graph that is `chain`: dynamic programs of chains first, then the searches."""
    known = chain_start(graph, chain, budget_bytes, effort)
    if is_lowered(graph, chain):
        return _over_all_schedules(graph, chain, budget_bytes, known, effort, options)
    starts = () if known is None else (known,)
    return [_of_small_or_any(graph, budget_bytes, effort, options, starts)]


def _with_copies(
    workload: Chain | Graph, budget_bytes: int, order: Order | None, **options: Any
) -> Plan:
    if order is not None and (order == "free" or isinstance(workload, Chain)):
        raise SchedsimError(
            f"order {order!r} is asked for, with a link", hint="offloading keeps the order given"
        )
    # It has seen store-all and the plan without copies; its candidates say so.
    return replace(offload(workload, budget_bytes, **options), planner="auto")


def _best(name: str, tried: list[Plan]) -> Plan:
    """The best of the plans tried, with all of them as candidates."""
    best = min(tried, key=_rank)
    chosen = replace(
        best,
        planner=name,
        search=replace(
            best.search,
            chosen=best.planner,
            ended_by=max((plan.search.ended_by for plan in tried), key=ENDED_BY.index),
        ),
        least=least_of([plan.least for plan in tried], peak_bytes=best.peak_bytes),
    )
    return with_candidates(chosen, tried)


def _rank(plan: Plan) -> tuple[bool, float, float, int, bool]:
    """Feasible plans first, then by time, variants used and peak, then the best of any schedule.

    Infeasible plans go by their least budget, then by what they prove.
    """
    if plan.makespan_s is None or plan.peak_bytes is None:
        least = float(plan.min_feasible_bytes or 2**62)
        return (True, least, -plan.lower_bound_s, 0, not plan.proven_infeasible)
    best_of_any = plan.status == "optimal" and plan.bound_scope == ANY_SCHEDULE
    return (False, plan.makespan_s, len(plan.variants), plan.peak_bytes, not best_of_any)

"""From a plan to a certificate: the plan's claims with a proof that needs no trust in a planner."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from schedsim.dataflow.chain import Chain
from schedsim.dataflow.graph import Graph
from schedsim.errors import PlannerLimitError, UnsupportedError
from schedsim.files.workload_files import workload_to_dict
from schedsim.plans.certificate import OPTIMAL_GAP, Certificate, ProvenBound, ProvenLeast
from schedsim.plans.claims import check_belongs
from schedsim.plans.effort import Effort
from schedsim.plans.plan import Plan
from schedsim.plans.scope import ANY_SCHEDULE, FIXED_ORDER, PERSISTENT, Scope
from schedsim.simulation.simulator import simulate

from ..chains.frontier import MAX_POINTS, MAX_WORK
from ..chains.persistent import Problem
from ..graphs._cut_search import CutSearch
from ..graphs._cut_table import Cut, CutTable, Order
from ..graphs._milp import MOST_OF_SIMPLEX
from ..graphs.bounds import least_memory_bytes
from .branch_tree import BranchTree
from .cut_rows import cut_rows, whole_prices

_WORK = 20.0
MAX_LEAVES = 400
"""The most leaves of a tree: with more, a certificate would take many megabytes."""


def certify(
    workload: Chain | Graph,
    plan: Plan,
    *,
    effort: Effort | float | None = None,
    time_limit_s: float | None = None,
    max_leaves: int = MAX_LEAVES,
) -> Certificate:
    """The certificate of `plan`: all that can be proven about it, in exact numbers.

    For a chain the proof is the dynamic program over persistent schedules, which a checker computes
    again. For a graph, or for a chain whose plan claims something over any schedule, the proof is a
    tree of linear programs over cuts with the multipliers of each leaf. A step that recomputes
    nothing needs no proof but the sum of its times.

    Parameters
    ----------
    workload
        The workload that the plan was made for.
    plan
        A plan without variants, copies, allocator or changed step: certificates do not cover these.
    effort, time_limit_s
        Effort of the search for cuts and of the tree; 20 units of work by default.
    max_leaves
        The most leaves of the tree.

    Returns
    -------
    Certificate
        Its bound may be lower than the plan's, where no proof was found for the plan's bound.

    Raises
    ------
    UnsupportedError
        The plan runs on a changed workload, or the workload has several streams.
    InvalidScheduleError
        The plan is of another workload.

    Notes
    -----
    Weak duality (Dantzig 1963) makes any multipliers valid, so that rounding them is safe; a tree
    of leaves as in VIPR (Cheung, Gleixner, Steffy, "Verifying integer programming results", 2017).

    Examples
    --------
    >>> import schedsim
    >>> chain = schedsim.Chain.from_arrays("four", 1, forward_s=[1] * 4, backward_s=[1] * 4,
    ...                                    output_bytes=[1] * 4, saved_bytes=[1] * 4)
    >>> certificate = certify(chain, schedsim.plan(chain, 6, "frontier"))
    >>> certificate.bound.bound_s, certificate.optimal, certificate.bound.proof["kind"]
    (Fraction(10, 1), True, 'dynamic-programme')
    """
    check_belongs(plan, workload)
    _check_plain(workload, plan)
    least = prove_least(workload, plan.budget_bytes)
    bound, peak_bytes, makespan_s = None, None, None
    if plan.schedule is not None:
        times = dict(zip(workload.graph.op_names, workload.graph.ops, strict=True))
        makespan_s = sum((Fraction(times[n].time_s) for n in plan.schedule.names), Fraction(0))
        peak_bytes = simulate(workload, plan.schedule).peak_bytes
        bound = _prove_bound(
            workload,
            plan,
            makespan_s,
            Effort.of(effort, time_limit_s, default=_WORK),
            max_leaves,
        )
    document = workload_to_dict(workload)
    return Certificate(
        instance={
            "name": workload.name,
            "kind": workload.kind,
            "content_hash": plan.workload.content_hash,
        },
        budget_bytes=plan.budget_bytes,
        planner=plan.found_by,
        schedule=None if plan.schedule is None else tuple(plan.schedule.names),
        peak_bytes=peak_bytes,
        makespan_s=makespan_s,
        bound=bound,
        least=least,
        document=document,
    )


def _check_plain(workload: Chain | Graph, plan: Plan) -> None:
    setting = plan.setting
    changes = {
        "variants": setting.variants,
        "copies": setting.link or setting.levels,
        "an allocator": setting.allocator,
        "a changed step": setting.step is not None
        and (setting.step.chunk or setting.step.accumulate != 1),
    }
    for what, is_there in changes.items():
        if is_there:
            raise UnsupportedError(
                f"certificates do not speak of plans with {what}",
                hint="plan the workload as it was given, on one stream and exact bytes",
            )
    if not workload.graph.one_stream or len(workload.graph.arrays.pool_names) > 1:
        raise UnsupportedError(
            "certificates do not speak of several streams or memory pools",
            hint="give a workload without copies",
        )


def _prove_bound(
    workload: Chain | Graph,
    plan: Plan,
    makespan_s: Fraction,
    effort: Effort,
    max_leaves: int,
) -> ProvenBound:
    graph = workload.graph
    least_s = sum((Fraction(op.time_s) for op in graph.ops), Fraction(0))
    plain = ProvenBound(ANY_SCHEDULE, least_s, {"kind": "store-all"})
    if makespan_s == least_s:
        return plain
    if isinstance(workload, Chain):
        found = _prove_by_dynamic_program(workload, plan.budget_bytes)
        # Optimality over persistent schedules is proven in a moment; a schedule that is faster than
        # all of these, or may be, needs cuts.
        if found is not None and found.bound_s <= makespan_s:
            close = makespan_s <= found.bound_s * (1 + OPTIMAL_GAP)
            if close or plan.bound_scope == PERSISTENT or plan.lower_bound_s <= least_s:
                return found
    order: Order = "fixed" if plan.bound_scope <= FIXED_ORDER else "free"
    extra_s = makespan_s - least_s
    return prove_by_cuts(graph, plan.budget_bytes, order, extra_s, effort, max_leaves) or plain


def _prove_by_dynamic_program(chain: Chain, budget_bytes: int) -> ProvenBound | None:
    """The optimum over persistent schedules; ``None`` where the curve is too long."""
    curve = persistent_curve(chain)
    if curve is None:
        return None
    fitting = [time for memory, time in curve.points if memory <= budget_bytes]
    if not fitting:
        return None
    return ProvenBound(PERSISTENT, fitting[-1] - curve.rounded_s, curve.proof)


@dataclass(frozen=True)
class PersistentCurve:
    """Break points (bytes, seconds) of the persistent schedules of a chain.

    Attributes
    ----------
    rounded_s
        The most by which a time may exceed the true one, because the dynamic program rounds times
        of ops to a grid; 0 where the times lie on the grid, as whole numbers do.
    """

    points: tuple[tuple[int, Fraction], ...]
    rounded_s: Fraction

    @property
    def proof(self) -> dict[str, Any]:
        """The proof: a checker computes the curve again; an exact curve comes with its hash."""
        text = "".join(f"{memory} {time}\n" for memory, time in self.points)
        table_hash = None
        if not self.rounded_s:
            table_hash = "sha256:" + hashlib.sha256(text.encode()).hexdigest()
        return {
            "kind": "dynamic-programme",
            "num_points": len(self.points),
            "table_hash": table_hash,
        }


def persistent_curve(chain: Chain) -> PersistentCurve | None:
    """The curve of `chain`, cached with the chain; ``None`` where it has too many points."""
    if "_persistent_curve" not in chain.__dict__:
        chain.__dict__["_persistent_curve"] = _solve(chain)
    found: PersistentCurve | None = chain.__dict__["_persistent_curve"]
    return found


def _solve(chain: Chain) -> PersistentCurve | None:
    problem = Problem(chain)
    try:
        table = problem.solve_exact(2**62, max_points=MAX_POINTS, max_work=MAX_WORK)
    except PlannerLimitError:
        return None
    row = int(problem.row_of[0, -1])
    points = slice(int(table.start[row]), int(table.start[row] + table.count[row]))
    memory = (table.memory[points] + problem.outside_bytes).tolist()
    times = map(Fraction, table.values[points].tolist())
    rounded_s = Fraction(0)
    if not _is_exact(chain):
        # A stage runs forward at most L times. Each run is rounded by at most half a step of 2^-46
        # of the whole time, and the sum of floats by as little again.
        runs = chain.num_stages * (chain.num_stages + 3)
        rounded_s = runs * Fraction(chain.store_all_s) / 2**45
    return PersistentCurve(tuple(zip(memory, times, strict=True)), rounded_s)


def _is_exact(chain: Chain) -> bool:
    """Whether times are whole numbers, of which no sum is rounded."""
    times = [time for stage in chain.stages for time in (stage.forward_s, stage.backward_s)]
    whole = all(time == math.floor(time) for time in (*times, chain.loss_s))
    return whole and chain.store_all_s * (chain.num_stages + 1) < 2**45


def prove_by_cuts(
    graph: Graph,
    budget_bytes: int,
    order: Order,
    extra_s: Fraction,
    effort: Effort,
    max_leaves: int,
) -> ProvenBound | None:
    """A bound from a tree over cuts; ``None`` where there is none above the store-all time.

    Parameters
    ----------
    extra_s
        Seconds that the repeated runs of a known schedule take: no higher bound is looked for.
    """
    search = CutSearch(graph, budget_bytes, order, effort.part(0.4))
    search.run()
    prices, unit_s = whole_prices(graph)
    if not search.proved_at or not any(prices):
        return None
    target = float(extra_s / unit_s)
    table = CutTable(graph, budget_bytes, order)
    best: BranchTree | None = None
    chosen: list[Cut] = []
    # One cut alone is tried first, because its proof is small where it is enough.
    single = max(search.bound_at, key=lambda op: search.bound_at[op])
    several = search.proved_small(MOST_OF_SIMPLEX)
    tried = [(single,), several] if len(several) > 1 else [several]
    for ops in tried:
        cuts = [table.cut(op) for op in sorted(ops)]
        rows = cut_rows(table, cuts, doubling=search.places.doubling)
        most = max_leaves if ops == tried[-1] else 1
        tree = BranchTree(rows, target, effort, most)
        if math.isfinite(tree.bound) and (best is None or tree.bound > best.bound):
            best, chosen = tree, cuts
        if best is not None and best.bound >= target:
            break
    if best is None or best.bound <= 0:
        return None
    names = graph.op_names
    proof = {
        "kind": "cut-tree",
        "cuts": [names[cut.op] for cut in chosen],
        "num_leaves": best.num_leaves,
        "tree": best.document,
    }
    if search.places.doubling:
        proof["doubling"] = True
    least_s = sum((Fraction(op.time_s) for op in graph.ops), Fraction(0))
    scope = FIXED_ORDER if order == "fixed" else ANY_SCHEDULE
    return ProvenBound(scope, least_s + int(best.bound) * unit_s, proof)


def prove_least(workload: Chain | Graph, budget_bytes: int) -> ProvenLeast:
    """The least budget that is proven: over persistent schedules of a chain, or over all schedules.

    For a chain it is the first break point of its curve, where the curve is known exactly;
    otherwise it is what one op needs by itself.
    """
    floor_bytes, op = least_memory_bytes(workload.graph)
    scope: Scope = ANY_SCHEDULE
    proof: dict[str, Any] = {"kind": "own-bytes", "op": op}
    curve = persistent_curve(workload) if isinstance(workload, Chain) else None
    if curve is not None and curve.points[0][0] > floor_bytes and budget_bytes >= floor_bytes:
        return ProvenLeast(PERSISTENT, curve.points[0][0], curve.proof)
    return ProvenLeast(scope, floor_bytes, proof)

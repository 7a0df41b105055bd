"""The table of planners: what each is, what it costs, and what its word optimal speaks of."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from schedsim.errors import SchedsimError
from schedsim.plans.plan import Plan


@dataclass(frozen=True, slots=True)
class PlannerInfo:
    """One planner, by name; its code is imported only when it is called.

    Attributes
    ----------
    name
        As on the command line, and of the function.
    kinds
        Workload kinds it takes: ``"chain"``, ``"graph"``.
    summary, source
        What it does, in a line; the paper or idea behind it.
    complexity
        Time, with L stages and M memory slots.
    optimal_for
        The class in which its plans are proven best; empty for a heuristic.
    module
        Below `schedsim.algorithms`; called like the function where empty.
    needs_link
        It offloads: it must be given a ``link``.
    """

    name: str
    kinds: tuple[str, ...]
    summary: str
    source: str
    complexity: str
    optimal_for: str = ""
    module: str = ""
    needs_link: bool = False

    def load(self) -> Callable[..., Plan]:
        """The planner itself: ``(workload, budget_bytes, *, options) -> Plan``."""
        module = import_module(f"schedsim.algorithms.{self.module or self.name}")
        planner: Callable[..., Plan] = getattr(module, self.name)
        return planner

    def options(self) -> frozenset[str]:
        """Names of the keyword options that the planner takes."""
        parameters = inspect.signature(self.load()).parameters.values()
        return frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)


PLANNERS: dict[str, PlannerInfo] = {
    info.name: info
    for info in (
        PlannerInfo(
            "auto",
            ("chain", "graph"),
            "store-all where it fits; chains: frontier or rotor; graphs: cuts and local search",
            "schedsim",
            "as its parts",
            "persistent schedules of chains; on graphs, where the bound is met",
        ),
        PlannerInfo(
            "store_all",
            ("chain", "graph"),
            "keeps everything: the least time, the most memory",
            "baseline",
            "O(L)",
            "any schedule, where it fits",
        ),
        PlannerInfo(
            "recompute_all",
            ("chain",),
            "stores every stage input and nothing else, replays each stage once",
            "baseline; Chen et al. 2016 with one stage a segment",
            "O(L)",
            module="chains.recompute_all",
        ),
        PlannerInfo(
            "periodic",
            ("chain",),
            "equal segments, the number of them chosen by simulation",
            "Chen et al. 2016, eq. 1, any k",
            "O(L^2)",
            module="chains.periodic",
        ),
        PlannerInfo(
            "chen_sqrt",
            ("chain",),
            "about sqrt(L) equal segments",
            "Chen et al. 2016, section 4.1",
            "O(L)",
            module="chains.chen",
        ),
        PlannerInfo(
            "chen_greedy",
            ("chain",),
            "segments closed when their bytes pass b, with the search over b",
            "Chen et al. 2016, algorithm 3 and appendix A",
            "O(L^2)",
            module="chains.chen",
        ),
        PlannerInfo(
            "bisection",
            ("chain",),
            "halves the chain again and again, to the depth that fits",
            "Siskind & Pearlmutter 2018",
            "O(L log L)",
            module="chains.bisection",
        ),
        PlannerInfo(
            "revolve",
            ("chain",),
            "binomial checkpointing for equal stages, any number of slots",
            "Griewank & Walther 2000",
            "O(L log L)",
            "uniform chains, states only, by number of forwards",
            module="chains.revolve",
        ),
        PlannerInfo(
            "hrevolve",
            ("chain",),
            "checkpoints in levels of memory, each with slots, write and read costs",
            "Herrmann & Pallez 2020",
            "O(L^2 C log L), C slots in all levels",
            "uniform chains, states only, copies and computation one after the other",
            module="chains.hrevolve",
        ),
        PlannerInfo(
            "rotor",
            ("chain",),
            "dynamic programme over memory slots, with workspaces",
            "Beaumont et al. 2019",
            "O(L^3 M)",
            "persistent schedules, where slots are exact or the gap closes",
            module="chains.rotor",
        ),
        PlannerInfo(
            "frontier",
            ("chain",),
            "the whole exact memory/time curve on true bytes",
            "schedsim",
            "O(L^3 P), P break points",
            "persistent schedules",
            module="chains.frontier",
        ),
        PlannerInfo(
            "exhaustive",
            ("chain", "graph"),
            "shortest path over all memory states: an oracle for tiny workloads",
            "schedsim",
            "exponential",
            "any schedule",
        ),
        PlannerInfo(
            "local_search",
            ("graph",),
            "anneals recomputations, and the order where it is free, on live memory under edits",
            "schedsim; Imanishi et al. 2023",
            "anytime; a move takes O(edges of its ops, times log runs)",
            "where it meets the bound of cuts",
            module="graphs.local_search",
        ),
        PlannerInfo(
            "hierarchical",
            ("graph",),
            "options of each kind of block, a programme over the line of blocks, then local search",
            "Zhao et al. 2023; Beaumont et al. 2019",
            "O(L^2 M) for L equal blocks, then anytime",
            "where it meets the bound of cuts",
            module="graphs.hierarchical",
        ),
        PlannerInfo(
            "dtr",
            ("graph",),
            "evicts what is cheapest to lose whenever an op lacks room; seven heuristics",
            "Kirisame et al. 2021",
            "O(E T), E evictions, T tensors in memory",
            module="graphs.dtr",
        ),
        PlannerInfo(
            "chen_articulation",
            ("graph",),
            "segments that end at articulation points, with the search over b",
            "Chen et al. 2016, algorithm 3 and appendix A",
            "O(n + m) a threshold",
            module="graphs.chen_articulation",
        ),
        PlannerInfo(
            "kusumoto",
            ("graph",),
            "dynamic programme over lower sets of the forward part, two families, two objectives",
            "Kusumoto et al. 2019",
            "O(#L^2 T), #L lower sets, T steps of time",
            module="graphs.kusumoto",
        ),
        PlannerInfo(
            "saved_bytes",
            ("graph",),
            "knapsack and minimum cut under a bound on saved bytes, turned until the peak fits",
            "PyTorch's activation memory budget",
            "O(n S + cut) a setting, S steps of bytes",
            module="graphs.saved_bytes",
        ),
        PlannerInfo(
            "cuts",
            ("graph",),
            "lets go what its lower bound lets go at the tightest ops; proven where that fits",
            "schedsim",
            "integer programmes of O(n + e) variables per cut",
            "fixed order, or any schedule with order='free', where its schedule fits",
            module="graphs.cuts",
        ),
        PlannerInfo(
            "checkmate",
            ("graph",),
            "mixed-integer programme over stages, with its linear relaxation and its rounding",
            "Jain et al. 2020",
            "exponential; O(n (n + e)) variables",
            "fixed order, one round of repeats before each first run",
            module="graphs.checkmate",
        ),
        PlannerInfo(
            "moccasin",
            ("graph",),
            "constraint programme over retention intervals, at most C per tensor (extra: cp)",
            "Bartan et al. 2023",
            "exponential; O(C n) integer variables",
            "fixed or any order, at most C - 1 repeats of an op",
            module="graphs.moccasin",
        ),
        PlannerInfo(
            "offload",
            ("chain", "graph"),
            "keeps, recomputes or copies to the host, per tensor, annealed in the engine's model",
            "schedsim; after Beaumont et al. 2021 (POFO)",
            "anytime; a move takes O(runs + reads)",
            "any schedule with copies (chains), fixed order (graphs), where it meets its bound",
            module="offload.offload",
            needs_link=True,
        ),
        PlannerInfo(
            "poet",
            ("graph",),
            "mixed-integer programme over stages with paging; its answer annealed for a moment",
            "Patil et al. 2022 (POET)",
            "exponential; O(n (n + e)) variables",
            "fixed order with copies, where it meets the bound of offload",
            module="offload.poet",
            needs_link=True,
        ),
        PlannerInfo(
            "plan_pipeline",
            ("pipeline",),
            "recomputation of each stage for its micro-batches in flight, and the cuts if asked",
            "schedsim; Sun et al. 2024",
            "O(l P Q) a run of l layers, then O(K L^2) for the cuts of K stages",
            "where it meets its bound on fill, work and drain",
            module="pipelines.plan_pipeline",
        ),
    )
}


def get_planner(name: str) -> PlannerInfo:
    """The planner called `name`.

    Raises
    ------
    SchedsimError
        There is none; the hint names the nearest.
    """
    if name not in PLANNERS:
        near = difflib.get_close_matches(name, PLANNERS, n=1)
        known = ", ".join(PLANNERS)
        raise SchedsimError(
            f"unknown planner {name!r}",
            hint=f"did you mean {near[0]!r}?" if near else f"one of {known}",
        )
    return PLANNERS[name]

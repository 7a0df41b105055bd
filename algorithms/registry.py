"""The table of planners: what each planner is, what it costs, and what its word *optimal* covers.

Everything that differs from planner to planner is a field of the planner's row. The rest of
schedsim reads the row and knows no planner by name; a planner of another package brings a row of
its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

from schedsim.errors import SchedsimError, UnsupportedError, did_you_mean
from schedsim.plans.curves import ParetoCurve
from schedsim.plans.plan import Plan
from schedsim.plugins import load_plugin, load_plugins, plugin_names

GROUP = "schedsim.planners"
KINDS = ("chain", "graph")
RULES = ("keep", "recompute")


@dataclass(frozen=True, slots=True)
class PlannerInfo:
    """One planner, by name; its code is imported only when it is called.

    Attributes
    ----------
    name
        The name on the command line, and the name of the function.
    kinds
        Kinds of workloads that the planner takes: ``"chain"``, ``"graph"``.
    summary, source
        What the planner does, in a line; the paper or idea behind it.
    complexity
        Time, with L stages and M memory slots.
    optimal_for
        The class in which its plans are proven best; empty for a heuristic.
    module
        Module below `schedsim.algorithms`; it is called like the function where this is empty.
    function
        The planner itself, where it is not a planner of `schedsim.algorithms`.
    needs_link
        Whether the planner offloads: it must then be given a ``link``.
    compared
        Whether a comparison of all planners includes it.
    curves
        Workload kind -> ``"module:function"``, for a planner that finds a whole memory/time curve.
    chain_rules
        Which of the rules ``keep`` and ``recompute`` the planner obeys on a chain; on a graph every
        planner obeys both, because the graph that it is given contains them.
    evicts
        Whether the planner reads from an op what must be recomputed, and needs no doubled graph.
    packages
        Packages besides schedsim whose version can change its plans.
    """

    name: str
    kinds: tuple[str, ...]
    summary: str = ""
    source: str = ""
    complexity: str = ""
    optimal_for: str = ""
    module: str = ""
    function: Callable[..., Any] | None = field(default=None, repr=False)
    needs_link: bool = False
    compared: bool = True
    curves: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    chain_rules: tuple[str, ...] = ()
    evicts: bool = False

    def load(self) -> Callable[..., Any]:
        """The planner itself: ``(workload, budget_bytes, *, options) -> Plan``.

        A planner of another package may return a schedule instead, or ``None`` where nothing fits.
        """
        if self.function is not None:
            return self.function
        module = import_module(f"schedsim.algorithms.{self.module or self.name}")
        planner: Callable[..., Plan] = getattr(module, self.name)
        return planner

    def options(self) -> frozenset[str]:
        """Names of the keyword options that the planner takes."""
        return _keywords(self.load())

    def takes_any(self) -> bool:
        """Whether the planner takes options of any name."""
        parameters = inspect.signature(self.load()).parameters.values()
        return any(p.kind is p.VAR_KEYWORD for p in parameters)

    def load_curve(self, kind: str) -> Callable[..., ParetoCurve]:
        """The function that finds the planner's whole curve on workloads of `kind`.

        Raises
        ------
        UnsupportedError
            The planner finds no whole curve at once; it can be asked at several budgets.
        """
        if kind not in self.curves:
            raise UnsupportedError(
                f"planner {self.name!r} finds no curve of a {kind} at once",
                hint="give budgets= to ask it at each of them",
            )
        module, _, function = self.curves[kind].partition(":")
        curve: Callable[..., ParetoCurve] = getattr(
            import_module(f"schedsim.algorithms.{module}"), function
        )
        return curve

    def curve_options(self, kind: str) -> frozenset[str]:
        """Names of the keyword options of the function that `load_curve` returns."""
        return _keywords(self.load_curve(kind)) if kind in self.curves else frozenset()


@cache
def _keywords(function: Callable[..., Any]) -> frozenset[str]:
    parameters = inspect.signature(function).parameters.values()
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
            compared=False,
            chain_rules=RULES,
        ),
        PlannerInfo(
            "store_all",
            ("chain", "graph"),
            "keeps everything: the least time, the most memory",
            "baseline",
            "O(L)",
            "any schedule, where it fits",
            chain_rules=RULES[:1],
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
            "dynamic program over memory slots, with workspaces",
            "Beaumont et al. 2019",
            "O(L^3 M)",
            "persistent schedules, where slots are exact or the gap closes",
            module="chains.rotor",
            chain_rules=RULES,
        ),
        PlannerInfo(
            "frontier",
            ("chain",),
            "the whole exact memory/time curve on true bytes",
            "schedsim",
            "O(L^3 P), P break points",
            "persistent schedules",
            module="chains.frontier",
            chain_rules=RULES,
            curves={
                "chain": "chains.frontier:frontier_curve",
                "graph": "graphs.graph_frontier:graph_frontier",
            },
        ),
        PlannerInfo(
            "chain_optimum",
            ("chain",),
            "A* from the end of the step over what must be in memory; about 30 stages",
            "schedsim",
            "exponential; 3^L demands for each backward at worst",
            "any schedule",
            module="chains.chain_optimum",
            compared=False,
        ),
        PlannerInfo(
            "exhaustive",
            ("chain", "graph"),
            "shortest path over all memory states: an oracle for tiny workloads",
            "schedsim",
            "exponential",
            "any schedule",
            compared=False,
            chain_rules=RULES,
            evicts=True,
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
            "options of each kind of block, recurrence over the line of blocks, then local search",
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
            "dynamic program over lower sets of the forward part, two families, two objectives",
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
            "evicts what its lower bound evicts at the tightest ops, and repairs what does not fit",
            "schedsim",
            "MILPs of O(n + e) variables per cut",
            "fixed order, or any schedule with order='free', where its schedule fits",
            module="graphs.cuts",
        ),
        PlannerInfo(
            "checkmate",
            ("graph",),
            "MILP over stages, with its linear relaxation and its rounding",
            "Jain et al. 2020",
            "exponential; O(n (n + e)) variables",
            "fixed order, one round of repeats before each first run",
            module="graphs.checkmate",
        ),
        PlannerInfo(
            "moccasin",
            ("graph",),
            "constraint program over retention intervals, at most C per tensor (extra: cp)",
            "Bartan et al. 2023",
            "exponential; O(C n) integer variables",
            "fixed or any order, at most C - 1 repeats of an op",
            module="graphs.moccasin",
            packages=("ortools", "scipy"),
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
            chain_rules=RULES[:1],
        ),
        PlannerInfo(
            "poet",
            ("graph",),
            "MILP over stages with paging; search and MILPs of cuts beyond some 15 ops",
            "Patil et al. 2022 (POET)",
            "exponential; O(n (n + e)) variables",
            "fixed order with copies, where it meets its bound",
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


DEFAULTS = {"chain": "auto", "graph": "auto", "pipeline": "plan_pipeline"}
"""Workload kind -> the planner that is used where nobody names one."""


def get_planner(
    planner: str | Callable[..., Any] | PlannerInfo | None = None, kind: str = "chain"
) -> PlannerInfo:
    """The row of `planner`, given by name or as a function; the default for `kind` where ``None``.

    Raises
    ------
    SchedsimError
        There is no such planner; the hint names the nearest name.

    Examples
    --------
    >>> get_planner().name, get_planner("rotor").kinds
    ('auto', ('chain',))
    """
    if planner is None:
        return PLANNERS[DEFAULTS[kind]]
    if isinstance(planner, PlannerInfo):
        return planner
    if callable(planner):
        return _own(planner)
    if not isinstance(planner, str):
        raise SchedsimError(
            f"planner {planner!r} is neither a name nor a function",
            hint="`schedsim planners` lists the names",
        )
    if planner in PLANNERS:
        return PLANNERS[planner]
    added = plugin_names(GROUP, PLANNERS)
    if planner in added:
        info: PlannerInfo = load_plugin(GROUP, planner, _read)
        return info
    known = [*PLANNERS, *added]
    raise SchedsimError(
        f"unknown planner {planner!r}",
        hint=did_you_mean(planner, known, f"one of {', '.join(known)}"),
    )


def all_planners() -> dict[str, PlannerInfo]:
    """Every planner by name: schedsim's own, then those of other packages that can be loaded."""
    return {**PLANNERS, **load_plugins(GROUP, _read, PLANNERS)}


def curve_planner(kind: str) -> PlannerInfo:
    """The planner that finds the whole curve of a workload of `kind`."""
    return next(info for info in PLANNERS.values() if kind in info.curves)


def planner_names() -> list[str]:
    """Names of every planner, without loading those of other packages."""
    return [*PLANNERS, *plugin_names(GROUP, PLANNERS)]


def _read(name: str, found: Any) -> PlannerInfo:
    """The row that an entry point of the group names, or the row of the function that it names."""
    if isinstance(found, PlannerInfo):
        if found.name != name:
            raise SchedsimError(f"its row is of a planner called {found.name!r}")
        if found.function is None:
            raise SchedsimError("its row has no function")
        return found
    if not callable(found):
        raise SchedsimError(f"{found!r} is neither a function nor a PlannerInfo")
    return _own(found, name)


def _own(function: Callable[..., Any], name: str = "") -> PlannerInfo:
    """The row of a function that a user wrote: what it takes is not known beforehand."""
    name = name or getattr(function, "__name__", type(function).__name__)
    try:
        inspect.signature(function)
    except (TypeError, ValueError):
        raise SchedsimError(
            f"planner {name!r} does not say what it takes, as builtins do not",
            hint="a function (workload, budget_bytes, *, options) of your own",
        ) from None
    lines = (inspect.getdoc(function) or "").splitlines()
    return PlannerInfo(name, KINDS, summary=lines[0] if lines else "", function=function)

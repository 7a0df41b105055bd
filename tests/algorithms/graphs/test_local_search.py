"""The local search: what it promises of seeds, starts, orders, interrupts, and of its results."""

from __future__ import annotations

import _thread
import itertools
import json
import math
import signal
from dataclasses import replace

import numpy as np
import pytest
from chains import INSTANCES, needs_instances
from schedsim.algorithms.graphs import _first_walkers, _graph_search
from schedsim.algorithms.graphs._bound_beside import BoundBeside
from schedsim.algorithms.graphs._cut_search import CutSearch
from schedsim.algorithms.graphs._graph_search import GraphSearch
from schedsim.algorithms.graphs._population import Population
from schedsim.algorithms.graphs._walker import GraphWalker
from schedsim.algorithms.graphs.bounds import least_memory_bytes
from schedsim.algorithms.graphs.local_search import local_search
from training_graphs import random_training_graph, unit_training_chain

from schedsim import Graph, InvalidScheduleError, Op, SchedsimError, Schedule, load, simulate
from schedsim.plans.effort import Effort
from schedsim.workloads.synthetic_graphs import layered


def peak_of(graph: Graph) -> int:
    return simulate(graph, Schedule.store_all(graph)).peak_bytes


def is_in_file_order(graph: Graph, schedule: Schedule) -> bool:
    firsts = list(dict.fromkeys(schedule.bind(graph).tolist()))
    return firsts == sorted(firsts)


def wide_graph(num: int = 40) -> Graph:
    """A training graph whose bound a short search does not meet."""
    return random_training_graph(np.random.default_rng(5), num)


def four() -> Graph:
    return Graph(
        "four",
        (
            Op("a", time_s=1, writes={"x": 2}),
            Op("b", time_s=1, reads=("x",), writes={"y": 2}),
            Op("c", time_s=1, reads=("y",), writes={"z": 2}),
            Op("d", "backward", time_s=1, reads=("x", "z")),
        ),
    )


@pytest.mark.slow
def test_walkers_leave_a_peak_at_which_no_single_edit_helps():
    """A tight wide graph gets a plan; walkers whose peak has no temperature find none.

    With so little effort one of two seeds finds one.
    """
    graph = layered(60, 2)
    budget = int(0.45 * peak_of(graph))
    assert any(local_search(graph, budget, effort=0.7, seed=seed).feasible for seed in (1, 0))


@pytest.mark.parametrize("order", ["fixed", pytest.param("free", marks=pytest.mark.slow)])
def test_counted_moves_are_reproducible(order):
    """With a thread and a number of moves, the same seed gives the same schedule and counts."""
    graph = wide_graph()
    budget = (2 * peak_of(graph) + least_memory_bytes(graph)[0]) // 3

    def found(seed):
        return local_search(
            graph, budget, order=order, seed=seed, max_moves=3000, num_threads=1, time_limit_s=60
        )

    one, again, other = found(1), found(1), found(2)
    assert one.schedule == again.schedule
    assert one.options == again.options
    assert one.search.num_moves <= 3000
    assert one.search.num_moves != 0 or one.status == "optimal"
    assert one.seed == 1
    assert other.feasible


@pytest.mark.parametrize("max_moves", [0, 7, 4321])
def test_moves_are_counted_over_all_walkers(max_moves):
    """No move more than asked for, and not one less where nothing else ends the search."""
    graph = wide_graph()
    budget = (peak_of(graph) + 3 * least_memory_bytes(graph)[0]) // 4
    plan = local_search(graph, budget, max_moves=max_moves, num_threads=2, time_limit_s=3)
    assert plan.status != "optimal"
    assert plan.search.num_moves == max_moves


def test_store_all_is_found_where_it_fits():
    """No move is needed, whatever the budget is beyond the peak, also beyond 64 bits."""
    graph = wide_graph()
    for budget in (peak_of(graph), 2**53, 2**63, 10**40):
        plan = local_search(graph, budget, time_limit_s=5)
        assert (plan.status, plan.makespan_s) == ("optimal", graph.store_all_s)
        assert plan.budget_bytes == budget


def test_a_single_op():
    """The smallest graph of all: it fits or it does not."""
    graph = Graph("one", (Op("a", writes={"x": 5}),))
    assert local_search(graph, 5).status == "optimal"
    plan = local_search(graph, 4)
    assert (plan.status, plan.min_feasible_bytes, plan.binding_op) == ("infeasible", 5, "a")


def test_infeasible_budgets_give_the_least_peak_seen():
    """And this is a budget at which there is a schedule, by running it."""
    graph = wide_graph(12)
    least, _ = least_memory_bytes(graph)
    plan = local_search(graph, least - 1, time_limit_s=1)
    assert plan.status == "infeasible"
    assert plan.proven_infeasible
    assert plan.min_feasible_bytes >= least
    assert plan.binding_op in graph.op_names
    # Not proven by one op alone: the walkers have gone down from the store-all peak.
    graph = wide_graph()
    least, _ = least_memory_bytes(graph)
    plan = local_search(graph, least, max_moves=2000, time_limit_s=2)
    assert not plan.feasible
    assert least < plan.min_feasible_bytes < peak_of(graph)


@pytest.mark.parametrize("names", ["abcad", "abcd"])
def test_starts_are_taken_up(names):
    """A start that fits is never lost, even without a move; one that does not fit does no harm."""
    graph = four()
    plan = local_search(graph, 4, starts=[Schedule.from_names(names)], max_moves=0)
    assert plan.feasible == (names == "abcad") or plan.makespan_s == 5
    graph = wide_graph()
    good = local_search(graph, peak_of(graph) * 3 // 4, time_limit_s=0.5)
    assert good.schedule is not None
    assert good.peak_bytes is not None
    for number in (1, 9):  # with more of them than walkers, too
        plan = local_search(graph, good.peak_bytes, starts=[good.schedule] * number, max_moves=0)
        assert plan.makespan_s <= good.makespan_s


def test_long_starts_are_taken_up():
    """A start much longer than the graph has ops, with each op forty times."""
    graph = unit_training_chain(6)
    runs = [k for op in range(graph.num_ops) for k in [*range(op)] * 6 + [op]]
    plan = local_search(graph, 5, starts=[Schedule(graph.op_names, runs)], time_limit_s=0.5)
    assert plan.feasible


def test_starts_that_cannot_be_used_are_refused():
    """Illegal ones, and in the fixed order those that leave it."""
    graph = Graph("two", (Op("a", writes={"x": 1}), Op("b", writes={"y": 1})))
    with pytest.raises(InvalidScheduleError):
        local_search(four(), 4, starts=[Schedule.from_names("bacad")])
    swapped = Schedule.from_names("ba")
    with pytest.raises(SchedsimError, match="b before a") as caught:
        local_search(graph, 4, starts=[swapped])
    assert "free" in caught.value.hint
    assert local_search(graph, 4, order="free", starts=[swapped]).feasible


@pytest.mark.parametrize("options", [{"num_threads": 0}, {"num_threads": -1}, {"max_moves": -1}])
def test_options_out_of_range(options):
    with pytest.raises(SchedsimError, match=next(iter(options))):
        local_search(four(), 4, **options)


def test_the_gap_stops_early():
    """A plan within the gap ends the search long before its moves are used up."""
    graph = wide_graph()
    budget = (peak_of(graph) + 3 * least_memory_bytes(graph)[0]) // 4
    strict = local_search(graph, budget, max_moves=20_000, time_limit_s=3, num_threads=1)
    loose = local_search(graph, budget, max_moves=20_000, time_limit_s=3, num_threads=1, gap=5.0)
    assert strict.gap > 0
    assert loose.gap <= 5.0
    assert loose.search.num_moves < strict.search.num_moves


def test_a_small_overhead_does_not_end_the_search(monkeypatch):
    """A step of which one op takes nearly all: what is left to gain is far below 0.1 % of it."""
    graph = wide_graph()
    long = Op("long", time_s=1e5 * graph.store_all_s, writes={"end": 0}, phase="backward")
    both = replace(graph, ops=(*graph.ops, long))
    budget = (peak_of(graph) + 3 * least_memory_bytes(graph)[0]) // 4
    monkeypatch.setattr(BoundBeside, "_share", lambda _: 0.0)  # no proof ends it either
    plan, alone = (local_search(g, budget, max_moves=20_000) for g in (both, graph))
    assert plan.search.num_moves == alone.search.num_moves == 20_000
    assert plan.makespan_s - long.time_s == pytest.approx(alone.makespan_s, rel=0.1)


@pytest.mark.slow
def test_the_fixed_order_is_kept_and_the_free_one_is_used():
    """On graphs where another order needs less, the fixed one stays in the file's order."""
    rng = np.random.default_rng(11)
    left = 0
    for _ in range(6):
        graph = random_training_graph(rng, 10)
        budget = (peak_of(graph) + least_memory_bytes(graph)[0]) // 2
        plan = local_search(graph, budget, max_moves=2000, time_limit_s=10)
        if plan.schedule is not None:
            assert is_in_file_order(graph, plan.schedule)
        plan = local_search(graph, budget, order="free", max_moves=2000, time_limit_s=10)
        if plan.schedule is not None:
            assert simulate(graph, plan.schedule).peak_bytes <= budget
            left += not is_in_file_order(graph, plan.schedule)
    assert left > 0


def test_once_ops_move_in_free_order_and_run_once():
    """Nothing may run twice here: a better order is the only way, and it is found."""
    # c and d first need 10 + 1 bytes, then a and b 10 + 1; in file order a's 10 bytes wait.
    ops = (
        Op("a", time_s=1, writes={"x": 10}, once=True),
        Op("c", time_s=1, writes={"y": 10}, once=True),
        Op("d", time_s=1, reads=("y",), writes={"v": 1}, once=True),
        Op("b", time_s=1, reads=("x",), writes={"u": 1}, once=True),
        Op("e", "backward", 1, reads=("u", "v"), once=True),
    )
    graph = Graph("once", ops)
    assert not local_search(graph, 12, time_limit_s=0.3).feasible
    plan = local_search(graph, 12, order="free", time_limit_s=5)
    assert (plan.status, plan.makespan_s) == ("optimal", 5)


@pytest.mark.parametrize(
    ("owner", "name", "num_before"),
    [
        (GraphWalker, "greedy", 0),
        (CutSearch, "solve_milps", 0),
        (GraphWalker, "anneal", 0),
        (GraphWalker, "anneal", 40),
        (GraphWalker, "begin", 1),
    ],
)
def test_an_interrupt_gives_the_best_plan_so_far(owner, name, num_before, monkeypatch, request):
    """Whenever it comes: in the making of walkers, in the bound, or in their rounds.

    It comes at a counted call: after a time, the search would still run on one machine and have
    ended on another.
    """
    graph = wide_graph()
    budget = (peak_of(graph) + least_memory_bytes(graph)[0]) // 2
    # A process started in the background of a script ignores the signal.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, handler))
    call, num_calls = getattr(owner, name), itertools.count()

    def interrupting(*args, **options):
        if next(num_calls) == num_before:
            _thread.interrupt_main()
        return call(*args, **options)

    if owner is GraphWalker:  # which the whole bound would stop: it solves this graph
        monkeypatch.setattr(CutSearch, "solve_milps", lambda search: None)
    monkeypatch.setattr(owner, name, interrupting)
    if name == "greedy":  # what comes before it would find a plan
        monkeypatch.setattr(Population, "run", lambda self, lines: [])
    plan = local_search(graph, budget, effort=1e9, time_limit_s=3000)
    assert plan.search.interrupted
    if plan.schedule is not None:
        assert simulate(graph, plan.schedule).peak_bytes <= budget
    else:
        assert plan.min_feasible_bytes > budget


def test_the_schedule_of_the_bound_is_taken_up_between_rounds():
    """A walker goes on from it; where it has no room for it, it is left out."""
    graph = four()
    search = GraphSearch(graph, 4, "fixed", Effort(1.0), seed=0, num_threads=1, gap=0.0)
    walker = search.make(0, np.arange(4))
    assert not walker.best_runs.size
    walker.take(np.array([0, 1, 2, 0, 3], np.int32))
    assert walker.best_s == 5
    before = walker.best_runs.tolist()
    walker.take(np.zeros(walker.profile.run.shape[0], np.int32))
    assert walker.best_runs.tolist() == before


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.8, 0.02])
def test_on_many_ops_a_scout_comes_first(monkeypatch, share):
    """Its plan stands until a walker has a faster one; where it finds none, the search goes on.

    Walkers begin warmer: on 10,000 ops they were within the limit after nine seconds.
    """
    for module in (_graph_search, _first_walkers):
        monkeypatch.setattr(module, "SLOW_OPS", 100)
    monkeypatch.setattr(_graph_search, "_SCOUTED", 0.2)
    graph = layered(120, 1)
    budget = int(share * peak_of(graph))
    reports = []
    found = []
    for num_threads in (1, 2):
        search = GraphSearch(
            graph, budget, "fixed", Effort(0.4), seed=0, num_threads=num_threads, gap=0.0
        )
        search.run(())
        found.append((search.best(), search.moves, search.bound.bound_s))
        reports.append(search.scout)
    assert found[0] == found[1]
    if share < 0.1:
        assert found[0][0] is None
        return
    scouted = Schedule(graph.op_names, reports[0].best_runs)
    assert simulate(graph, scouted).peak_bytes <= budget
    assert simulate(graph, found[0][0]).makespan_s < reports[0].best_s
    assert search.lean.found is None


@needs_instances
@pytest.mark.parametrize(
    ("name", "fraction"),
    [("cm_fcn_8_vgg_train", 0.8), ("linear32_train", 0.5), ("ku_resnet50_train", 0.8)],
)
def test_known_times_are_reached(name, fraction):
    """On these shared graphs the best known time is reached within seconds."""
    graph = load(INSTANCES / "dag" / f"{name}.json")
    rows = json.loads((INSTANCES / "dag" / "best-known.json").read_text())
    row = next(r for r in rows if r["graph"] == name and r["budget_fraction"] == fraction)
    plan = local_search(graph, row["budget_bytes"], time_limit_s=3)
    assert plan.makespan_s <= row["best_s"] * (1 + 1e-9)
    assert plan.peak_bytes <= row["budget_bytes"]
    assert is_in_file_order(graph, plan.schedule)
    assert not math.isinf(plan.lower_bound_s)


def test_the_least_budget_is_not_looked_for_beyond_the_time():
    """The peak of store-all is then the least known; with counted work the descent goes on."""
    graph = unit_training_chain(40)
    late = local_search(graph, 2, time_limit_s=0.0)
    assert late.least.found_bytes == simulate(graph, Schedule.store_all(graph)).peak_bytes
    assert late.search.ended_by == "clock"
    assert local_search(graph, 2, effort=0.01).least.found_bytes < late.least.found_bytes

"""Blocks found by structure, the line of blocks with options, and the plans that come of it."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from schedsim.algorithms.chains._recurrence import find_classes
from schedsim.algorithms.graphs import _block_line
from schedsim.algorithms.graphs._block_line import SolvedLine
from schedsim.algorithms.graphs._block_options import BlockClass, block_classes
from schedsim.algorithms.graphs._block_recurrence import (
    BACKWARD,
    FORWARD,
    BlockRows,
    solve_rows,
    trace_rows,
)
from schedsim.algorithms.graphs._graph_blocks import MOST_CROSSING, REST, find_blocks
from schedsim.algorithms.graphs.chen_articulation import chen_articulation
from schedsim.algorithms.graphs.hierarchical import hierarchical, plan_budgets, solved_line
from training_graphs import (
    check_graph_plan,
    deep_unet,
    random_training_graph,
    unit_training_chain,
)

from schedsim import Chain, Graph, Op, Schedule, UnsupportedError, simulate
from schedsim.plans import progress
from schedsim.plans.effort import Effort
from schedsim.workloads import WorkloadOptions, build_workload


@cache
def transformer(layers: int) -> Graph:
    """A GPT-3-like model by op: 13 forward ops a layer."""
    return build_workload(WorkloadOptions(layers=layers, granularity="op")).workload


def peak_of(graph: Graph) -> int:
    return simulate(graph, Schedule.store_all(graph)).peak_bytes


@pytest.mark.parametrize(("layers", "ops_each", "fewest"), [(8, 27, 6), (48, 53, 22)])
def test_layers_of_a_transformer_are_one_class(layers, ops_each, fewest):
    """A block a layer, or two where there are many: 13 ops each way a layer, and the rest."""
    line = find_blocks(transformer(layers))
    kinds = line.kinds.tolist()
    most = max(set(kinds), key=kinds.count)
    assert kinds.count(most) >= fewest
    assert len(set(kinds)) <= 5
    block = line.blocks[line.first_of_kind[most]]
    assert block.ops.size == ops_each
    # The residual stream alone joins layers, forward and backward.
    assert (block.inputs.size, block.outputs.size) == (1, 1)
    assert (block.gradients_in.size, block.gradients_out.size) == (1, 1)


@pytest.mark.parametrize("layers", [3, 12])
def test_blocks_hold_every_op_once_in_the_order_of_the_graph(layers):
    """Forward parts first to last, then the rest last to first, are the graph's own order."""
    graph = transformer(layers)
    line = find_blocks(graph)
    forward = [block.ops[: np.flatnonzero(block.ops < 0)[0]] for block in line.blocks[:-1]]
    behind = [block.ops[np.flatnonzero(block.ops < 0)[0] + 1 :] for block in line.blocks[:-1]]
    whole = np.concatenate([*forward, line.blocks[-1].ops, *behind[::-1]])
    assert whole.tolist() == list(range(graph.num_ops))


def test_equal_names_do_not_matter_but_times_and_sizes_do():
    """One op slower, or one tensor larger, and its block is of a kind of its own."""
    graph = unit_training_chain(40)
    usual = find_blocks(graph).kinds
    common = np.bincount(usual).argmax()
    for change in ({"time_s": 2.0}, {"workspace_bytes": 1}):
        ops = list(graph.ops)
        at = 21
        old = ops[at]
        ops[at] = Op(
            old.name, old.phase, **({"time_s": 1.0} | change), reads=old.reads, writes=old.writes
        )
        kinds = find_blocks(Graph("changed", tuple(ops), graph.inputs)).kinds
        assert kinds.size == usual.size
        assert np.count_nonzero(kinds == kinds[2]) == np.count_nonzero(usual == common) - 1


def test_a_graph_that_is_no_line_is_refused():
    """Skips from every forward op to its mirror image leave no cut; neither does one op."""
    wide = [Op("f0", writes={"x0": 1})]
    wide += [
        Op(f"f{i}", reads=tuple(f"x{j}" for j in range(i)), writes={f"x{i}": 1})
        for i in range(1, 40)
    ]
    graph = Graph("wide", (*wide, Op("b", "backward", reads=("x39",), time_s=1)))
    with pytest.raises(UnsupportedError, match="no line of blocks") as error:
        hierarchical(graph, 5)
    assert "local_search" in error.value.hint


@pytest.mark.slow
def test_skips_are_carried_along_the_line():
    """A U-Net of eight levels: more tensors cross its middle than a line has, and it is one."""
    graph = deep_unet(8, 6)
    line = find_blocks(graph)
    assert max(block.inputs.size for block in line.blocks) > MOST_CROSSING
    assert max(block.ops.size for block in line.blocks) < graph.num_ops // 3
    peak = simulate(graph, Schedule.store_all(graph)).peak_bytes
    for share in (0.7, 0.5, 0.35):
        plan = hierarchical(graph, int(share * peak), effort=0.8)
        assert plan.schedule is not None
        replay = simulate(graph, plan.schedule)
        assert replay.peak_bytes == plan.peak_bytes <= share * peak
        assert plan.lower_bound_s <= replay.makespan_s < 1.2 * graph.store_all_s


def test_the_schedule_of_a_block_runs_alone():
    """Store-all of the block's graph: what it keeps is counted without what came in."""
    line = find_blocks(transformer(12))
    graph = line.subgraph(4)
    assert REST in graph.op_names
    assert set(graph.inputs.values()) == {0}
    simulate(graph, Schedule.store_all(graph))


# --- the recurrence --------------------------------------------------------------------------


def random_line(rng: np.random.Generator):
    """Arrays of a line of up to four blocks with up to three options, whole numbers."""
    num = int(rng.integers(2, 5))
    count = rng.integers(1, 4, num)
    start = np.concatenate([[0], np.cumsum(count)])
    total = int(start[-1])
    x = np.concatenate([[0], rng.integers(0, 4, num - 1)])
    last = np.repeat(np.arange(num), count)
    following = np.concatenate([x[1:], [0]])
    kept = following[last] + rng.integers(0, 6, total)
    d = np.concatenate([[0], rng.integers(0, 3, num - 1), [0]])
    return (
        start,
        rng.integers(2, 12, total).astype(float),
        kept,
        kept + rng.integers(0, 4, total),
        rng.integers(1, 10, total),
        rng.integers(1, 4, num).astype(float),
        following + rng.integers(0, 4, num),
        x,
        d,
        np.concatenate([[0], np.cumsum(rng.integers(0, 2, num))]),
    )


def best_by_hand(problem, slots: int) -> float:
    """Every way of running a line, its memory counted step by step, without a recurrence."""
    start, times, kept, forward, backward, plain_s, plain, x, d, results = problem
    num = plain.size

    def ways(i, k):
        """Each way as steps (time, peak, what it leaves charged), with a stack of charges."""
        for o in range(start[i], start[i + 1]):
            if i + 1 == k:
                yield [(times[o], max(forward[o] + d[k], backward[o]), 0)]
            else:
                for rest in ways(i + 1, k):
                    steps = [(times[o], forward[o] + d[k], 0)]
                    steps += [(t, peak + kept[o], 0) for t, peak, _ in rest]
                    yield [*steps, (0.0, backward[o] + results[k] - results[i + 1], 0)]
        for j in range(i + 1, k):
            head = [(plain_s[b], plain[b] + (x[b] if b > i else 0) + d[k], 0) for b in range(i, j)]
            for right in ways(j, k):
                moved = [(t, peak + x[j], 0) for t, peak, _ in right]
                for left in ways(i, j):
                    after = results[k] - results[j]
                    yield head + moved + [(t, peak + after, 0) for t, peak, _ in left]

    fitting = (
        sum(t for t, _, _ in way)
        for way in ways(0, num)
        if max(peak for _, peak, _ in way) <= slots
    )
    return min(fitting, default=np.inf)


def test_the_recurrence_equals_enumeration():
    """Over all ways of tiny random lines, at several memories; the steps traced cost that time."""
    rng = np.random.default_rng(5)
    reached = 0
    for _ in range(60):
        problem = random_line(rng)
        num = problem[6].size
        rows = find_classes(np.arange(num), np.zeros(num, np.int64))
        most = 25
        line = BlockRows(*problem, *rows)
        table = solve_rows(line, most)
        for slots in (4, 8, 12, 18, 25):
            expected = best_by_hand(problem, slots)
            assert table[rows[0][0, num], slots] == expected
            steps = trace_rows(line, table, slots)
            if np.isinf(expected):
                assert steps.shape == (0, 3)
                continue
            reached += 1
            of_options = sum(problem[1][o] for what, _, o in steps.tolist() if what == FORWARD)
            plain = sum(problem[5][b] for what, b, _ in steps.tolist() if what not in (1, 2))
            assert of_options + plain == expected
            order = [b for what, b, _ in steps.tolist() if what == BACKWARD]
            assert order == list(range(num - 1, -1, -1))
    assert reached > 100


def test_equal_blocks_share_rows_and_change_nothing():
    """The table over classes of equal ranges is the table over all ranges."""
    rng = np.random.default_rng(2)
    start, times, kept, forward, backward, plain_s, plain, _, _, _ = random_line(rng)
    one = slice(start[0], start[1])
    num, size = 7, int(start[1])
    problem = (
        np.arange(num + 1) * size,
        *(np.tile(values[one], num) for values in (times, kept, forward, backward)),
        np.full(num, plain_s[0]),
        np.full(num, plain[0]),
        np.full(num, 2),
        np.full(num + 1, 1),
        np.arange(num + 1),
    )
    values = []
    for kinds in (np.zeros(num, np.int64), np.arange(num)):
        rows = find_classes(kinds, np.zeros(num, np.int64))
        values.append(solve_rows(BlockRows(*problem, *rows), 60)[rows[0][0, num]])
    assert np.array_equal(*values)


def test_the_line_counts_no_less_than_the_replay():
    """On one slot a byte and all options at hand, a schedule of the line fits as predicted."""
    graph = transformer(12)
    solved = SolvedLine.of(find_blocks(graph), effort=Effort(0.0), seed=0)
    assert all(isinstance(one, BlockClass) and one.options for one in solved.classes.values())
    budget = peak_of(graph) // 3
    found = solved.schedules(budget)
    assert found[0].peak_bytes <= budget
    # Memory is used: what is left would not hold another layer's keepings.
    assert found[0].peak_bytes > 0.9 * budget
    firsts = list(dict.fromkeys(found[0].schedule.bind(graph).tolist()))
    assert firsts == sorted(firsts)


# --- the planner -----------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.6, 0.25, 0.1])
def test_a_transformer_beats_segments_of_layers(share):
    """Never worse than segments between articulation points, never over budget."""
    graph = transformer(24)
    budget = int(share * peak_of(graph))
    plan = hierarchical(graph, budget, time_limit_s=1.5)
    segments = chen_articulation(graph, budget)
    assert plan.feasible
    assert simulate(graph, plan.schedule).peak_bytes <= budget
    assert plan.lower_bound_s <= plan.makespan_s <= plan.search.figures["line_s"]
    assert plan.search.figures["kinds"] <= 5
    if segments.feasible:
        assert plan.makespan_s <= segments.makespan_s


@pytest.mark.slow
def test_the_line_alone_beats_periodic_segments():
    """Before any search over the whole graph, at the budgets that segments of layers reach."""
    graph = transformer(24)
    solved = solved_line(graph, effort=Effort(2.0), seed=0)
    compared = 0
    for share in (0.6, 0.4, 0.25, 0.15, 0.1):
        budget = int(share * peak_of(graph))
        segments = chen_articulation(graph, budget)
        if segments.feasible:
            compared += 1
            best = solved.schedules(budget)[0]
            assert best.peak_bytes <= budget
            assert best.makespan_s <= segments.makespan_s
    assert compared >= 2


@pytest.mark.slow
def test_a_second_budget_uses_the_blocks_of_the_first():
    """Blocks are solved once where the caller passes them on; no call leaves anything behind."""
    graph = transformer(8)
    budgets = [int(share * peak_of(graph)) for share in (0.5, 0.3)]
    plans = plan_budgets(graph, budgets, effort=0.3, seed=3)
    assert [plan.budget_bytes for plan in plans] == budgets
    assert all(plan.peak_bytes <= plan.budget_bytes for plan in plans)
    # The same blocks and budget, with no calls for other budgets before.
    solved = solved_line(graph, effort=Effort(0.3), seed=3)
    alone = hierarchical(graph, budgets[1], effort=0.3, seed=3, solved=solved)
    assert alone.schedule == plans[1].schedule
    assert hierarchical(graph, budgets[0], effort=0.3, seed=3, solved=solved).schedule == (
        plans[0].schedule
    )


@pytest.mark.slow
def test_random_training_graphs_keep_every_promise():
    """Those that are lines of blocks: once ops, results, optional and in-place outputs included."""
    rng = np.random.default_rng(0)
    planned = 0
    for _ in range(60):
        graph = random_training_graph(rng, int(rng.integers(14, 26)))
        try:
            line = find_blocks(graph)
        except UnsupportedError:
            continue
        solved = SolvedLine.of(line, effort=Effort(0.0), seed=0)
        peak = peak_of(graph)
        for share in (0.95, 0.8, 0.6):
            for simulation in solved.schedules(int(share * peak)):
                assert simulation.makespan_s >= graph.store_all_s * (1 - 1e-9)
                planned += simulation.peak_bytes <= share * peak
    assert planned > 20


def test_what_fits_is_not_searched():
    """Store-all at its own peak, also without a line of blocks to be found."""
    graph = unit_training_chain(3)
    plan = hierarchical(graph, peak_of(graph))
    assert plan.status == "optimal"
    assert plan.schedule == Schedule.store_all(graph)


def test_too_small_a_budget_is_infeasible():
    """Nothing fits in less than one op needs; the plan says what was seen."""
    graph = transformer(4)
    plan = hierarchical(graph, 10**8, time_limit_s=0.5)
    assert plan.status == "infeasible"
    assert plan.min_feasible_bytes > 10**8


def test_a_chain_of_ops_is_checked_like_every_planner():
    """Where the bound is met at once, the same call gives the same schedule."""
    graph = unit_training_chain(24)
    check_graph_plan(lambda g, b: hierarchical(g, b, time_limit_s=0.4), graph, peak_of(graph))


def test_a_budget_that_one_op_rules_out_costs_no_blocks(monkeypatch):
    """The answer is proven at once; no block is solved for it."""

    def solved(*args, **kwargs):
        raise AssertionError("blocks are solved in vain")

    monkeypatch.setattr("schedsim.algorithms.graphs.hierarchical.solved_line", solved)
    chain = Chain.from_arrays("twelve", 1, forward_s=[1] * 12, backward_s=[1] * 12,
                                       output_bytes=[1] * 12, saved_bytes=[1] * 12)  # fmt: skip
    plan = hierarchical(chain.graph, 2, effort=0.2)
    assert plan.proven_infeasible
    assert plan.search.figures["blocks"] == 3


@pytest.mark.parametrize("noted", [False, True])
def test_an_interrupt_while_blocks_are_solved_gives_the_plan_so_far(noted, monkeypatch):
    """Whether it comes between two searches of a block, or one of them takes note of it."""
    graph, reports = transformer(24), []

    def interrupted(line, *, effort, seed):
        reports.append(progress.current().best_s)
        if not noted:
            raise KeyboardInterrupt
        effort.cancel()
        return block_classes(line, effort=Effort(0.0), seed=seed)

    monkeypatch.setattr(_block_line, "block_classes", interrupted)
    with progress.searching("auto"):
        plan = hierarchical(graph, int(0.5 * peak_of(graph)), effort=1.0)
    assert plan.feasible
    assert plan.search.interrupted
    assert plan.makespan_s <= reports[0] < float("inf")  # there was a plan before the blocks

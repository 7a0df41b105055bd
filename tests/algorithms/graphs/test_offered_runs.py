"""A schedule with offers: the schedule is in it, and an offer wherever it may be of use."""

from __future__ import annotations

import numpy as np
from schedsim.algorithms.graphs._offered_runs import offered_runs
from schedsim.algorithms.graphs._replan_search import _last_use, _neighbours

from tests.helpers.chains import random_graph, random_schedule


def offered(line, ops, last_use, is_open):
    runs, ours = np.empty(200, np.int64), np.empty(200, np.bool_)
    count = offered_runs(line, np.array(ops), np.array(last_use), np.array(is_open), runs, ours)
    return runs[:count], ours[:count]


def test_ops_that_have_run_are_offered_where_something_is_made_of_them():
    """Op 0 is read by 1 and 3, and op 1 by 2; the repeat of 0 in front of 3 is there already."""
    runs, ours = offered(np.array([0, 1, 2, 0, 3, 4]), [0, 1], [3, 2, 2, 3, 4], [True] * 5)
    assert runs.tolist() == [0, 0, 1, 0, 1, 2, 0, 3, 4]
    assert runs[ours].tolist() == [0, 1, 2, 0, 3, 4]


def test_a_closed_gap_has_no_offer():
    is_open = [True, True, False, True, True]
    runs, _ = offered(np.array([0, 1, 2, 3, 4]), [0, 1], [3, 2, 2, 3, 4], is_open)
    assert runs.tolist() == [0, 0, 1, 2, 0, 3, 4]


def test_each_gap_has_each_op_once_more_at_most():
    rng = np.random.default_rng(0)
    for _ in range(60):
        graph = random_graph(rng, int(rng.integers(1, 12)))
        kept = random_schedule(rng, graph).bind(graph).tolist()
        seen, firsts = set(), []
        for op in kept:  # first runs in the order of the ops
            if op not in seen and op != len(firsts):
                break
            firsts += [op] if op not in seen else []
            seen.add(op)
        line = np.array(kept) if len(firsts) == graph.num_ops else np.arange(graph.num_ops)
        ops = np.flatnonzero(rng.random(graph.num_ops) < 0.5)
        is_open = rng.random(graph.num_ops) < 0.7
        last_use = _last_use(_neighbours(graph)[0])
        runs, ours = offered(line, ops, last_use, is_open)
        assert runs[ours].tolist() == line.tolist()
        ran, offers = set(), set()
        for op, is_ours in zip(runs.tolist(), ours.tolist(), strict=True):
            if is_ours and op not in ran:
                ran.add(op)
                offers.clear()
            elif not is_ours:
                gap = len(ran)
                assert op in ran & set(ops.tolist()) - offers
                assert is_open[gap]
                assert last_use[op] >= gap
                offers.add(op)

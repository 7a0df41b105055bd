"""The linear program over cuts, against the stand-alone checker's own making of it."""

from fractions import Fraction

import numpy as np
import pytest
from rematlib import script
from schedsim.algorithms.certificates.cut_rows import cut_rows, whole_prices
from schedsim.algorithms.graphs._cut_table import CutTable
from training_graphs import random_training_graph

from schedsim import Graph, Op
from schedsim.files.workload_files import workload_to_dict

check = script("check")


@pytest.mark.parametrize("order", ["fixed", "free"])
@pytest.mark.parametrize("seed", range(12))
def test_rows_are_those_that_the_checker_makes(seed, order):
    rng = np.random.default_rng(seed)
    graph = random_training_graph(rng, int(rng.integers(3, 9)))
    budget = int(rng.integers(20, 150))
    table = CutTable(graph, budget, order)
    num_cuts = min(graph.num_ops, int(rng.integers(3, 8)))
    places = sorted(rng.choice(graph.num_ops, num_cuts, replace=False).tolist())
    cuts = [table.cut(place) for place in places]
    if order == "free":  # each must surely be before the next
        cuts = [*[cut for cut in cuts if cuts[-1].before[cut.op]][:1], cuts[-1]]
    ours = cut_rows(table, cuts, doubling=seed % 2 == 0)
    theirs_graph = check.make_graph(workload_to_dict(graph))
    scope = check.FIXED if order == "fixed" else check.ANY
    theirs = check.cut_program(
        theirs_graph,
        [check.make_cut(theirs_graph, budget, scope, cut.op) for cut in cuts],
        doubling=seed % 2 == 0,
    )
    assert list(zip(ours.rows, ours.rights, strict=True)) == theirs.rows
    assert (ours.cost, ours.low, ours.high) == (theirs.cost, theirs.low, theirs.high)
    assert ours.unit_s == theirs.unit


def test_a_unit_divides_all_times_that_may_repeat():
    ops = (
        Op("a", time_s=0.75, writes={"x": 1}),
        Op("b", time_s=0.5, reads=("x",), writes={"y": 1}),
        Op("c", time_s=0.1, reads=("y",), once=True),
    )
    assert whole_prices(Graph("g", ops)) == ([3, 2, 0], Fraction(1, 4))

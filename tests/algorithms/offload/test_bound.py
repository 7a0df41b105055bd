"""The bound of a step that may copy: below everything, and met where the link is the limit."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from chains import random_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from offload_plans import some_budget, tiny_chain
from offload_steps import random_offloading
from schedsim.algorithms.graphs._cut_table import CutTable
from schedsim.algorithms.offload._bound import (
    CopyBound,
    _cut_bound_s,
    confirmed,
    copy_bound,
    growing_bound,
    windows_bound,
)
from schedsim.algorithms.offload._linked_graph import link_graph
from slow_offload import least_time_s
from tiers import examples

from schedsim import Chain, Graph, Op
from schedsim.plans.effort import Effort
from schedsim.plans.links import Link
from schedsim.plans.offloading import Offloading


def bounded(graph: Graph, budget: int, offloading: Offloading, *, growing: bool = False):
    """The bound of single cuts, then of several, as the planner asks for them."""
    linked = link_graph(graph, budget, offloading)
    single = copy_bound(graph, linked, budget, effort=Effort(20.0))
    several = growing_bound if growing else windows_bound
    return several(graph, linked, budget, single, effort=Effort(20.0))


@settings(max_examples=examples(15), deadline=None)
@given(seed=st.integers(0, 10**9), is_chain=st.booleans())
def test_no_way_in_time_is_faster(seed, is_chain):
    """To keep, recompute and copy, at any moment; infinite only where nothing fits."""
    rng = np.random.default_rng(seed)
    if is_chain:
        graph = tiny_chain(rng, int(rng.integers(1, 3))).graph
    else:
        graph = random_graph(rng, int(rng.integers(2, 5)))
        plain = [replace(op, in_place={}, saving_workspace_bytes=None) for op in graph.ops]
        graph = replace(graph, ops=tuple(plain))
    offloading = random_offloading(rng, whole=True)
    budget = some_budget(rng, graph)
    best = least_time_s(graph, budget, offloading, max_states=4000)
    if best is None:
        return
    growing = bool(rng.integers(2))
    assert graph.store_all_s <= bounded(graph, budget, offloading, growing=growing).bound_s <= best
    linked, table = link_graph(graph, budget, offloading), CutTable(graph, budget, "fixed")
    for op in range(graph.num_ops):
        for integral in (False, True):
            effort = Effort(20.0)
            assert _cut_bound_s(graph, linked, table, op, effort, integral=integral) <= best
        if math.isfinite(best):  # an optimum is not refuted
            found = _cut_bound_s(
                graph, linked, table, op, Effort(20.0), integral=True, below_s=best
            )
            assert math.isfinite(found)


def waiting(size: int = 8) -> Graph:
    """x must be away while l runs, and a minute is too long to make it again."""
    ops = (
        Op("f", time_s=60, writes={"x": size}, once=True),
        Op("g", time_s=1, writes={"y": 0}),
        Op("l", "loss", time_s=1, workspace_bytes=size),
        Op("b", "backward", time_s=1, reads=("x", "y")),
    )
    return Graph("waiting", ops)


@pytest.mark.parametrize(("out", "back"), [(8, 8), (8, 2), (1, 1), (0.1, 1), (0.1, 8)])
def test_the_link_decides(out, back):
    """f takes 60 s; 8 bytes go out while g runs, or longer; l, then the bytes back, then b."""
    graph = waiting()
    offloading = Offloading(Link(out), Link(back))
    want = 60 + max(1, 8 / out) + 1 + 8 / back + 1
    assert least_time_s(graph, 8, offloading) == want
    found = bounded(graph, 8, offloading)
    assert found.bound_s == pytest.approx(want, rel=1e-6)
    assert found.op in ("f", "l")
    assert bounded(graph, 16, offloading) == CopyBound(graph.store_all_s)


def test_nothing_fits_is_infinite():
    """The workspace alone; or a host without room for what can stay nowhere else."""
    assert math.isinf(bounded(waiting(), 7, Offloading(Link(1), Link(1))).bound_s)
    assert math.isinf(bounded(waiting(), 8, Offloading(Link(8), Link(8), 0)).bound_s)
    assert math.isfinite(bounded(waiting(), 8, Offloading(Link(8), Link(8), 8)).bound_s)


def test_whole_times_round_up():
    """All runs and copies take multiples of 2 s: so does the least makespan."""
    num = 4
    chain = Chain.from_arrays(
        "even",
        2,
        forward_s=[2] * num,
        backward_s=[4] * num,
        output_bytes=[2] * num,
        saved_bytes=[6] * num,
    )
    found = bounded(chain.graph, 18, Offloading(Link(1), Link(1)))
    assert found.bound_s > chain.store_all_s
    assert found.bound_s % 2 == 0


def late_and_early() -> Graph:
    """x is written first and read last; y is written last and read first, and l has no room."""
    ops = (
        Op("f", time_s=1, writes={"x": 8}, once=True),
        Op("g", time_s=9, writes={"y": 8}, once=True),
        Op("h", time_s=1, writes={"z": 0}),
        Op("l", "loss", time_s=1, reads=("z",), workspace_bytes=16),
        Op("c", "backward", time_s=1, reads=("y",)),
        Op("b", "backward", time_s=9, reads=("x",)),
    )
    return Graph("late and early", ops)


def test_what_is_written_late_or_read_early_has_little_time():
    """A copy lasts 5 s: of y out beside h, of y back before c, and then of x beside c.

    While l runs nothing comes back, which the cut there does not know.
    """
    graph, offloading = late_and_early(), Offloading(Link(1.6), Link(1.6))
    assert least_time_s(graph, 16, offloading) == 22 + 4 + 5 + 4
    table, linked = CutTable(graph, 16, "fixed"), link_graph(graph, 16, offloading)
    loss = graph.op_index("l")
    found = _cut_bound_s(graph, linked, table, loss, Effort(20.0), integral=True)
    assert found == pytest.approx(22 + 4 + 4 + 4, rel=1e-6)


def test_a_schedule_that_meets_the_bound_is_confirmed():
    """A slower one is not, and neither is one that the bound is far below."""
    graph, offloading = waiting(), Offloading(Link(8), Link(2))
    linked = link_graph(graph, 8, offloading)
    optimum = 63.0  # that of the cut at g: f, g beside the way out, l beside the way back, b
    cut = CopyBound(optimum * (1 - 1e-7), "g")

    def asked(makespan_s: float) -> CopyBound:
        return confirmed(graph, linked, 8, cut, makespan_s, effort=Effort(10.0))

    assert asked(optimum) == CopyBound(optimum * (1 - 5e-10), "g")
    assert asked(optimum * (1 + 5e-9)) == cut
    assert asked(optimum * (1 + 1e-6)) == cut
    assert asked(cut.bound_s) == cut


def test_a_schedule_that_meets_several_cuts_is_confirmed():
    """Each cut alone says less than both; what both say is told from anything faster."""
    graph, link = two_waits(), Link(1)
    offloading = Offloading(link, link)
    linked = link_graph(graph, 10, offloading)
    best = least_time_s(graph, 10, offloading)
    single = copy_bound(graph, linked, 10, effort=Effort(20.0))
    assert single.bound_s < best
    several = growing_bound(graph, linked, 10, single, effort=Effort(20.0))
    assert several.bound_s == pytest.approx(best, abs=1e-3)
    assert len(several.cuts) > 1
    rough = replace(several, bound_s=best * (1 - 1e-7))
    sure = confirmed(graph, linked, 10, rough, best, effort=Effort(20.0))
    assert best * (1 - 1e-9) < sure.bound_s < best
    late = confirmed(graph, linked, 10, rough, best * (1 + 1e-8), effort=Effort(20.0))
    assert late == rough
    met = growing_bound(graph, linked, 10, single, effort=Effort(20.0), below_s=best)
    assert best * (1 - 1e-9) < met.bound_s < best


def two_waits() -> Graph:
    """A tensor in the way of two ops, read behind each, with no other time for its copies."""
    ops = (
        Op("x", time_s=1, writes={"x": 4}, once=True),
        Op("one", time_s=1, workspace_bytes=9),
        Op("use", time_s=1, reads=("x",)),
        Op("two", time_s=1, workspace_bytes=9),
        Op("loss", "loss", time_s=1, reads=("x",)),
    )
    return Graph("two waits", ops)

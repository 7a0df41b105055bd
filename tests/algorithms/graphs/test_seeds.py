"""Seeds of a search: legal, measured by a replay, in the order of their use."""

from __future__ import annotations

import numpy as np
import pytest
from chains import random_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from schedsim.algorithms.graphs._seeds import (
    dtr_seeds,
    kusumoto_seeds,
    saved_bytes_start,
    seeds,
)
from schedsim.algorithms.graphs.saved_bytes import saved_bytes
from tiers import examples
from training_graphs import random_training_graph, some_budget, unit_training_chain

from schedsim import Graph, Op, Schedule, simulate
from schedsim.workloads.synthetic_graphs import SYNTHETIC_GRAPHS, layered


@pytest.mark.slow
@given(seed=st.integers(0, 10**9), training=st.booleans(), size=st.integers(1, 25))
@settings(max_examples=examples(60))
def test_seeds_are_what_they_say(seed, training, size):
    """Each is legal, keeps the order of first runs, and costs what its row says."""
    rng = np.random.default_rng(seed)
    graph = random_training_graph(rng, size) if training else random_graph(rng, size)
    budget = some_budget(rng, graph)
    found = seeds(graph, budget)
    assert "store_all" in [one.name for one in found]
    for one in found:
        assert one.runs.dtype == np.int32
        simulation = simulate(graph, Schedule(graph.op_names, one.runs))
        assert (one.peak_bytes, one.makespan_s) == (simulation.peak_bytes, simulation.makespan_s)
        firsts = list(dict.fromkeys(one.runs.tolist()))
        assert firsts == sorted(firsts)
    fitting = [one for one in found if one.peak_bytes <= budget]
    others = found[len(fitting) :]
    assert found[: len(fitting)] == fitting
    assert [one.makespan_s for one in fitting] == sorted(one.makespan_s for one in fitting)
    assert [one.peak_bytes for one in others] == sorted(one.peak_bytes for one in others)


def test_a_chain_at_half_its_memory():
    """Several methods give a seed that fits; the best costs a quarter more, the known optimum."""
    graph = unit_training_chain(64)
    peak = simulate(graph, Schedule.store_all(graph)).peak_bytes
    found = seeds(graph, peak // 2)
    fitting = {one.name.split()[0] for one in found if one.peak_bytes <= peak // 2}
    assert {"dtr", "chen", "kusumoto"} <= fitting
    assert found[0].makespan_s <= 1.27 * graph.store_all_s


def test_long_chains_leave_out_what_is_slow():
    """Beyond the limits there are no seeds of Kusumoto, and the walks of DTR are left out."""
    graph = unit_training_chain(2000)
    assert kusumoto_seeds(graph, 500) == []
    names = {one.name for one in dtr_seeds(graph, 500)}
    assert names == {"dtr dtr_eq", "dtr local", "dtr size"}


@given(seed=st.integers(0, 10**9), training=st.booleans(), size=st.integers(1, 25))
@settings(max_examples=examples(60))
def test_what_to_save_is_a_schedule_that_fits(seed, training, size):
    """It is legal, keeps the order of first runs, and is measured by a replay."""
    rng = np.random.default_rng(seed)
    graph = random_training_graph(rng, size) if training else random_graph(rng, size)
    budget = some_budget(rng, graph)
    found = saved_bytes_start(graph, budget)
    if found is None:
        return
    simulation = simulate(graph, Schedule(graph.op_names, found.runs))
    assert (found.peak_bytes, found.makespan_s) == (simulation.peak_bytes, simulation.makespan_s)
    assert found.peak_bytes <= budget
    firsts = list(dict.fromkeys(found.runs.tolist()))
    assert firsts == sorted(firsts)


def test_few_settings_come_close_to_many():
    """Halves of one stretch take the place of forty settings over all of it."""
    graph = SYNTHETIC_GRAPHS["dense"](300, 0)
    budget = int(0.4 * simulate(graph, Schedule.store_all(graph)).peak_bytes)
    found, many = saved_bytes_start(graph, budget), saved_bytes(graph, budget)
    assert found is not None
    assert many.makespan_s is not None
    assert found.makespan_s / graph.store_all_s - 1 <= 1.05 * many.overhead + 1e-9


def test_without_a_forward_or_a_backward_nothing_is_saved():
    """A graph of forward ops alone, and one of backward ops alone, have no such start."""
    assert saved_bytes_start(layered(60), 10**9) is None
    alone = Graph(
        "alone", (Op("b", "backward", writes={"x": 1}), Op("c", "backward", reads=("x",)))
    )
    assert saved_bytes_start(alone, 10) is None

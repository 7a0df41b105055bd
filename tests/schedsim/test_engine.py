"""The engine: by hand, against a slow reference, and against the pass for one stream."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from offloaded_stages import offloaded
from slow_engine import slow_course
from stream_graphs import random_stream_graph, random_stream_schedule, single_stream_instance
from tiers import examples

from schedsim import DeadlockError, Graph, Op, SchedsimError, Schedule, simulate
from schedsim.plans.links import Link, with_copies
from schedsim.simulation.simulator import CATEGORIES
from schedsim.simulation.waiting import critical_path, critical_s, idle_s

SEEDS = st.integers(0, 10**9)


def check_path(simulation):
    """Each step begins as the one before it ends, or starts with the run issued before it."""
    path = critical_path(simulation)
    assert path[0].start_s == 0
    assert path[-1].end_s == simulation.makespan_s
    for step, after in itertools.pairwise(path):
        assert after.start_s == (step.start_s if after.cause == "issue order" else step.end_s)
    assert math.isclose(sum(critical_s(simulation).values()), simulation.makespan_s)
    for stream, reasons in idle_s(simulation).items():
        spent = simulation.busy_s[stream] + sum(reasons.values())
        assert math.isclose(spent, simulation.makespan_s)


def check_against_reference(simulation, expected, graph):
    """Times, peaks, and the bytes of every pool after every event."""
    check_path(simulation)
    assert simulation.start_s.tolist() == expected.start_s
    assert simulation.end_s.tolist() == expected.end_s
    assert simulation.makespan_s == max(expected.end_s)
    events = [(int(e) // 2, "end" if e % 2 else "start") for e in simulation.events]
    assert events == expected.events
    for pool in graph.arrays.pool_names:
        assert simulation.peak_by_pool[pool] == expected.peak[pool]
        assert simulation.pool_bytes(pool).tolist() == expected.memory[pool]


@pytest.mark.slow
@given(seed=SEEDS, num_ops=st.integers(1, 12))
@settings(max_examples=examples(500), deadline=None)
def test_times_and_bytes_equal_the_slow_reference(seed, num_ops):
    """Without capacities: never stuck, and everything as the reference has it."""
    rng = np.random.default_rng(seed)
    graph = random_stream_graph(rng, num_ops)
    schedule = random_stream_schedule(rng, graph)
    simulation = simulate(graph, schedule)
    expected = slow_course(graph, schedule.names)
    assert not expected.stuck
    check_against_reference(simulation, expected, graph)
    total = sum(simulation.timeline[name] for name in CATEGORIES)
    assert total.tolist() == simulation.memory_bytes.tolist()


@pytest.mark.slow
@given(seed=SEEDS, num_ops=st.integers(1, 12))
@settings(max_examples=examples(300), deadline=None)
def test_waiting_for_memory_equals_the_slow_reference(seed, num_ops):
    """With capacities: the same waits, and stuck where, and only where, the reference is."""
    rng = np.random.default_rng(seed)
    graph = random_stream_graph(rng, num_ops)
    schedule = random_stream_schedule(rng, graph)
    free = simulate(graph, schedule).peak_by_pool
    share = float(rng.choice([0.5, 0.7, 0.85, 1.0]))
    capacities = {pool: int(peak * share) for pool, peak in free.items() if rng.random() < 0.7}
    expected = slow_course(graph, schedule.names, capacities)
    if expected.stuck:
        with pytest.raises(DeadlockError) as caught:
            simulate(graph, schedule, capacities)
        left = {
            graph.ops[graph.op_index(name)].stream
            for name, end in zip(schedule.names, expected.end_s, strict=True)
            if end is None
        }
        before = caught.value.run_index is None  # the inputs alone do not fit
        assert len(caught.value.waits) == (0 if before else len(left))
        assert caught.value.hint
        return
    simulation = simulate(graph, schedule, capacities)
    check_against_reference(simulation, expected, graph)
    assert all(simulation.peak_by_pool[pool] <= size for pool, size in capacities.items())


@pytest.mark.slow
@given(seed=SEEDS, num_ops=st.integers(1, 12))
@settings(max_examples=examples(500), deadline=None)
def test_one_stream_equals_the_linear_pass(seed, num_ops):
    """The engine and the pass for one stream: every byte of every run, category and event."""
    rng = np.random.default_rng(seed)
    graph, schedule = single_stream_instance(rng, num_ops)
    linear = simulate(graph, schedule)
    engine = simulate(graph, schedule, {})
    assert linear.course is None
    assert engine.course is not None
    assert engine.memory_bytes.tolist() == linear.memory_bytes.tolist()
    for name in ("peak_bytes", "peak_run", "peak_op", "makespan_s", "peak_by_pool"):
        assert getattr(engine, name) == getattr(linear, name)
    assert engine.start_s.tolist() == linear.start_s.tolist()
    assert engine.end_s.tolist() == linear.end_s.tolist()
    assert engine.events.tolist() == linear.events.tolist()
    assert engine.pool_bytes().tolist() == linear.pool_bytes().tolist()
    assert engine.pool_bytes()[0::2].tolist() == linear.memory_bytes.tolist()
    for name in CATEGORIES:
        assert engine.timeline[name].tolist() == linear.timeline[name].tolist()
        assert engine.pool_timeline()[name].tolist() == linear.pool_timeline()[name].tolist()
    for run in range(len(schedule)):
        assert engine.live_tensors(run) == linear.live_tensors(run)


def test_offloading_by_hand():
    """r1 (6 bytes, 1.5 s a copy) leaves after F0 and comes back from the start of B1.

    F0 0-1, d2h 1-2.5, F1 1-2, loss 2-2, B1 2-4, h2d from B1's start, but r1 is down at 2.5: 2.5-4,
    B0 4-6. Device: F0 a0 a1 r1 = 14; F1 + a2 r2 = 24; loss + d2 = 28; B1 + d1 = 32; at 2.5 r1 goes
    and comes back; B0 has a0 a1 r1 d1 left.
    """
    simulation = simulate(*offloaded("F0 d2h:r1 F1 loss B1 h2d:r1 B0"))
    assert simulation.start_s.tolist() == [0, 1, 1, 2, 2, 2.5, 4]
    assert simulation.end_s.tolist() == [1, 2.5, 2, 2, 4, 4, 6]
    assert simulation.peak_by_pool == {"device": 32, "host": 6}
    assert simulation.memory_bytes.tolist() == [14, 14, 24, 28, 32, 32, 18]
    assert (simulation.makespan_s, simulation.overhead, simulation.num_copies) == (6, 0, 2)
    assert simulation.busy_s == {"compute": 6, "d2h": 1.5, "h2d": 1.5}
    assert simulation.num_recomputed == 0


def test_a_message_goes_as_soon_as_it_can():
    """Required ops on a link are not held back by the compute runs before them."""
    ops = (
        Op("a0", time_s=1, writes={"x": 8}, stream="compute:0"),
        Op("b0", time_s=5, writes={"z": 8}, stream="compute:1"),
        Op("b1", time_s=5, reads=("z",), stream="compute:1"),
        Op(
            "send",
            time_s=2,
            reads=("x",),
            writes={"y": 8},
            stream="link:0-1",
            pools={"y": "device:1"},
        ),
        Op("b2", time_s=1, reads=("y",), stream="compute:1"),
    )
    graph = Graph("pipe", ops)
    simulation = simulate(graph, Schedule.store_all(graph))
    assert simulation.start_s.tolist() == [0, 0, 5, 1, 10]
    assert simulation.peak_by_pool == {"device": 0, "device:0": 8, "device:1": 16}
    assert (simulation.peak_bytes, simulation.peak_op) == (16, "send")
    assert graph.store_all_s == simulation.makespan_s == 11
    assert graph.busiest_stream_s == 11


def test_what_does_not_fit_at_the_start_is_said():
    """Static bytes beyond the capacity of their pool; an unknown pool; a size that is none."""
    graph = Graph("g", (Op("f"),), static_bytes=5, pool_static_bytes={"host": 9})
    schedule = Schedule.store_all(graph)
    with pytest.raises(DeadlockError, match="pool 'host' holds 9 B before the first run"):
        simulate(graph, schedule, {"host": 8})
    with pytest.raises(SchedsimError, match="no pool 'hots'") as caught:
        simulate(graph, schedule, {"hots": 8})
    assert "device, host" in caught.value.hint
    with pytest.raises(SchedsimError, match="negative"):
        simulate(graph, schedule, {"host": -1})


def test_in_place_waits_for_nobody():
    """relu over x while a copy still reads it needs storage of its own; later it does not."""
    ops = (
        Op("f", time_s=1, writes={"x": 8}),
        Op("wait", time_s=3),
        Op("relu", time_s=1, reads=("x",), writes={"y": 8}, in_place={"y": "x"}),
        Op("b", "backward", reads=("y",)),
    )
    graph = with_copies(Graph("g", ops), d2h=Link(4), h2d=Link(4), tensors=["x"])
    soon = simulate(graph, Schedule.from_names(["f", "d2h:x", "relu", "wait", "b"]))
    assert soon.peak_by_pool["device"] == 16
    late = simulate(graph, Schedule.from_names(["f", "d2h:x", "wait", "relu", "b"]))
    assert late.peak_by_pool["device"] == 8


@given(seed=SEEDS, num_ops=st.integers(1, 12))
@settings(max_examples=examples(200), deadline=None)
def test_without_capacities_less_work_delays_nothing(seed, num_ops):
    """Some op becomes faster: no run starts later."""
    rng = np.random.default_rng(seed)
    graph = random_stream_graph(rng, num_ops)
    schedule = random_stream_schedule(rng, graph)
    ops = list(graph.ops)
    chosen = int(rng.integers(0, len(ops)))
    ops[chosen] = replace(ops[chosen], time_s=ops[chosen].time_s * rng.random())
    faster = simulate(replace(graph, ops=tuple(ops)), schedule)
    assert (faster.start_s <= simulate(graph, schedule).start_s).all()


def test_within_capacities_less_work_can_take_longer():
    """Graham's anomaly: what comes early takes the memory that something more urgent needs.

    Of 2 bytes, big takes 2 while it runs, and y, which is fetched as soon as x is copied, takes 1
    until it is used. A copy of 1.2 s lets big go first; after one of 0.5 s it has to wait.
    """
    ops = (
        Op("w", time_s=1, writes={"s": 0}),
        Op("big", time_s=1, workspace_bytes=2, reads=("s",)),
        Op("fetch", time_s=2, writes={"y": 1}, reads=("x",), stream="link:0-1"),
        Op("use", time_s=1, reads=("y",), stream="compute:1"),
        Op("tail", time_s=3),
    )

    def makespan(copy_s: float) -> float:
        copy = Op("copy", time_s=copy_s, writes={"x": 0}, stream="d2h")
        graph = Graph("anomaly", (copy, *ops))
        return simulate(graph, Schedule.store_all(graph), {"device": 2}).makespan_s

    # big 1-2, tail 2-5, fetch 2-4, use 4-5; or fetch 0.5-2.5, use 2.5-3.5, big 3.5-4.5, tail
    assert makespan(1.2) == 5
    assert makespan(0.5) == 7.5

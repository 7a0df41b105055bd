"""Traces: the rules of their format, and that they say what the simulation says."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_graphs import random_stream_graph, random_stream_schedule, single_stream_instance
from tiers import examples
from trace_rules import check_trace

from schedsim import Chain, Graph, Op, Schedule, Stage, simulate
from schedsim.plans.links import Link, with_copies
from schedsim.simulation.trace import is_trace_name, trace_document, write_trace


def of_phase(document, phase):
    return [event for event in document["traceEvents"] if event["ph"] == phase]


def tied_runs(document):
    """(run that makes it, run that reads it, name) of each flow, as Perfetto's importer ties them.

    An end belongs to the slice on top of its track's stack (GetTopmostSliceOnTrack): the one that
    was read last.
    """
    top, ends = {}, {}
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            top[event["tid"]] = event["args"]["run"]
        elif event["ph"] in "sf":
            ends.setdefault((event["id"], event["name"]), []).append(top[event["tid"]])
    return [(*runs, name) for (_, name), runs in ends.items()]


@given(seed=st.integers(0, 10**9), num_ops=st.integers(1, 10), several=st.booleans())
@settings(max_examples=examples(150), deadline=None)
def test_traces_keep_the_rules(seed, num_ops, several):
    """On random graphs; a slice per run, a flow per read of a written tensor, all peaks."""
    rng = np.random.default_rng(seed)
    if several:
        graph = random_stream_graph(rng, num_ops)
        schedule = random_stream_schedule(rng, graph)
    else:
        graph, schedule = single_stream_instance(rng, num_ops)
    simulation = simulate(graph, schedule)
    document = trace_document(simulation)
    check_trace(document)
    slices = {event["args"]["run"]: event for event in of_phase(document, "X")}
    assert len(slices) == simulation.num_runs
    for run, name in enumerate(schedule.names):
        event = slices[run]
        assert event["name"] == name
        assert event["ts"] == simulation.start_s[run] * 1e6
        assert event["ts"] + event["dur"] == pytest.approx(simulation.end_s[run] * 1e6)
    counters = of_phase(document, "C")
    for pool, peak in simulation.peak_by_pool.items():
        totals = [sum(event["args"].values()) for event in counters if event["name"] == pool]
        assert max(totals, default=0) == peak
        if totals:
            assert totals[-1] == simulation.pool_bytes(pool)[-1]
    made = {tensor for op in graph.ops for tensor in op.writes}
    newest, expected = {}, []
    for run, name in enumerate(schedule.names):
        op = graph.ops[graph.op_index(name)]
        expected += [(newest[t], run, t) for t in op.reads if t in made and t in newest]
        newest.update(dict.fromkeys(op.writes, run))
    assert sorted(tied_runs(document)) == sorted(expected)


def test_a_trace_by_hand(tmp_path):
    """An offloaded bundle: names of the tracks, microseconds, counters and the flow back."""
    chain = Chain("two", 4, (Stage("s0", 1, 2, 4, 10), Stage("s1", 1, 2, 4, 10)))
    graph = with_copies(chain, d2h=Link(4), h2d=Link(4), tensors=["r1"])
    schedule = Schedule.from_names(["F0", "d2h:r1", "F1", "loss", "B1", "h2d:r1", "B0"])
    simulation = simulate(graph, schedule)
    write_trace(simulation, tmp_path / "trace.json.gz")
    document = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))
    check_trace(document)
    names = {
        event["tid"]: event["args"]["name"]
        for event in of_phase(document, "M")
        if event["name"] == "thread_name"
    }
    assert names == {1: "compute", 2: "d2h", 3: "h2d"}
    (back,) = (event for event in of_phase(document, "X") if event["name"] == "h2d:r1")
    assert (back["ts"], back["dur"], back["tid"]) == (2.5e6, 1.5e6, 3)
    assert (back["cat"], back["args"]["waited for"]) == ("copy", "input")
    host = [event for event in of_phase(document, "C") if event["name"] == "host"]
    assert [(event["ts"], event["args"]) for event in host] == [
        (0, {"saved": 0}),
        (1e6, {"saved": 6}),
        (4e6, {"saved": 0}),
    ]
    (use,) = (event for event in of_phase(document, "f") if event["name"] == "r1@host")
    (make,) = (event for event in of_phase(document, "s") if event["id"] == use["id"])
    assert (make["tid"], make["ts"], use["tid"], use["ts"]) == (2, 1e6, 3, 2.5e6)
    write_trace(simulation, tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_bytes()) == document


def test_names_of_traces():
    """Compressed ones, and those that say it."""
    assert [is_trace_name(name) for name in ("a.json.gz", "x/trace.json", "plan.json", "a.gz")] == [
        True,
        True,
        False,
        False,
    ]


def test_flows_are_tied_to_their_runs_where_others_begin_at_the_same_time():
    """Runs that take no time begin together with the next run of their stream."""
    ops = (
        Op("make", time_s=0, writes={"x": 8}),
        Op("turn", time_s=0, reads=("x",), writes={"y": 8}),
        Op("use", time_s=1, reads=("y",), writes={"z": 8}),
    )
    graph = Graph("instant", ops)
    document = trace_document(simulate(graph, Schedule.store_all(graph)), "any rank: one step")
    check_trace(document)
    names = [event["name"] for event in document["traceEvents"] if event["ph"] in "Xsf"]
    assert names == ["make", "x", "turn", "x", "y", "use", "y"]
    assert document["traceEvents"][0]["args"] == {"name": "any rank: one step"}

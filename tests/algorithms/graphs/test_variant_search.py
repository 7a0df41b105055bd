"""The choice of variants of a graph: which are worth more, and which exclude each other."""

from __future__ import annotations

import pytest
from schedsim.algorithms.graphs.variant_search import _ranked, variant_search

import schedsim
from schedsim import Graph, Op, Schedule, simulate
from schedsim.dataflow.variants import GraphVariant
from schedsim.files.document import from_dict, to_dict
from schedsim.plans.effort import Effort

OPS = (
    Op("f", time_s=1, writes={"x": 100}),
    Op("g", time_s=1, reads=("x",), writes={"y": 100}),
    Op("loss", "loss", reads=("y",), writes={"d.y": 100}),
    Op("g'", "backward", time_s=2, reads=("d.y", "x"), writes={"d.x": 100}),
)


def encoded(tensor: str, reader: str, *, size: int = 30, time_s: float = 0.1, prefix: str = ""):
    """`reader` reads a copy of the tensor, of `size` bytes, that was encoded and is decoded."""
    small, again = f"{prefix}{tensor}.8", f"{prefix}{tensor}.again"
    adds = (
        Op(f"{prefix}enc", time_s=time_s, reads=(tensor,), writes={small: size}),
        Op(f"{prefix}dec", "backward", time_s=time_s, reads=(small,), writes={again: 100}),
    )
    return GraphVariant(f"int8 {prefix}{tensor}", "quantize", adds, {reader: {tensor: again}})


INT8 = encoded("x", "g'")


def two_tensors(*variants: GraphVariant) -> Graph:
    """x is read by two backward ops, y by one."""
    ops = (
        *OPS[:3],
        Op("g'", "backward", time_s=2, reads=("d.y", "x", "y"), writes={"d.x": 100}),
        Op("f'", "backward", time_s=1, reads=("d.x", "x")),
    )
    return Graph("two", ops, variants=variants)


def names(graph: Graph, allow=("quantize",)) -> list[str]:
    return [variant.name for variant in _ranked(graph, allow)]


def test_bytes_for_a_second_decide():
    """The smaller copy, or the faster one, comes first; one that is not allowed does not come."""
    cheap = encoded("y", "g'", prefix="a.")
    slow = encoded("x", "f'", time_s=9.0, prefix="b.")
    both = GraphVariant("both", "quantize", slow.adds, {"g'": {"x": "b.x.again"}, **slow.instead})
    assert names(two_tensors(both, cheap)) == ["int8 a.y", "both"]
    small = encoded("y", "g'", size=10, prefix="c.")
    assert names(two_tensors(cheap, small)) == ["int8 c.y"]  # one of two of the same tensor
    assert names(two_tensors(cheap), allow=("approx",)) == []


def test_a_tensor_that_somebody_else_still_reads_saves_nothing():
    """x stays for the other backward op, and its copy comes on top."""
    assert names(two_tensors(encoded("x", "f'"))) == []
    assert names(Graph("one", OPS, variants=(INT8,))) == ["int8 x"]
    assert names(Graph("no gain", OPS, variants=(encoded("x", "g'", size=100),))) == []


def test_no_variant_at_all_is_always_tried():
    """Where none helps the budget, the plan without any is there beside the others."""
    graph = Graph("one", OPS, variants=(INT8,))
    plans = variant_search(graph, 10**6, ("quantize",), effort=Effort(0.5))
    assert {len(plan.variants) for plan in plans} == {0, 1}
    assert plans[-1].variants == ()  # the fastest: nothing has to go
    assert plans[-1].makespan_s == graph.store_all_s
    for plan in plans:
        assert plan.simulate(graph).makespan_s == plan.makespan_s
        assert plan.lower_bound_s <= graph.store_all_s


def test_the_search_over_graphs_uses_what_pays():
    """Where encoding is cheaper than running again, and never where it is not."""
    graph = Graph("g", (Op("f", time_s=5, writes={"x": 100}), *OPS[1:]), variants=(INT8,))
    store_all = simulate(graph, Schedule.store_all(graph)).peak_bytes
    assert store_all == 300
    plan = schedsim.plan(graph, 300, allow=("quantize",), time_limit_s=0.3)
    assert plan.variants == ()
    wide = Graph(
        "wide",
        (*graph.ops[:2], Op("h", time_s=1, reads=("y",), writes={"z": 60}, workspace_bytes=120),
         Op("loss", "loss", reads=("z",), writes={"d.z": 60}),
         Op("h'", "backward", time_s=1, reads=("d.z",), writes={"d.y": 100}), OPS[3]),
        variants=(INT8,),
    )  # fmt: skip
    budget = simulate(wide, Schedule.store_all(wide)).peak_bytes - 60
    plain = schedsim.plan(wide, budget, time_limit_s=0.3)
    plan = schedsim.plan(wide, budget, allow=("quantize",), time_limit_s=0.8)
    assert plain.makespan_s - plain.store_all_s == pytest.approx(5)
    assert plan.makespan_s - plan.store_all_s == pytest.approx(0.2)
    assert [c.label for c in plan.variants] == ["int8 x"]
    assert from_dict(to_dict(plan)) == plan


def test_the_search_takes_one_of_those_that_exclude_each_other():
    """Two variants of different reads whose added ops have one name: never both, no error."""

    def encoded(tensor: str, reader: str) -> GraphVariant:
        small, again = f"{tensor}.8", f"{tensor}.again"
        adds = (
            Op("enc", time_s=0.1, reads=(tensor,), writes={small: 10}),
            Op("dec", "backward", time_s=0.1, reads=(small,), writes={again: 100}),
        )
        return GraphVariant(f"int8 {tensor}", "quantize", adds, {reader: {tensor: again}})

    graph = Graph(
        "g",
        (
            Op("f", time_s=5, writes={"x": 100}),
            Op("g", time_s=5, reads=("x",), writes={"y": 100}),
            Op("h", time_s=1, reads=("y",), writes={"z": 10}, workspace_bytes=100),
            Op("loss", "loss", reads=("z",), writes={"d.z": 10}),
            Op("g'", "backward", time_s=1, reads=("d.z", "y"), writes={"d.y": 10}),
            Op("f'", "backward", time_s=1, reads=("d.y", "x"), writes={"d.x": 10}),
        ),
        variants=(encoded("x", "f'"), encoded("y", "g'")),
    )
    peak = simulate(graph, Schedule.store_all(graph)).peak_bytes
    plan = schedsim.plan(graph, peak - 60, allow="quantize", time_limit_s=0.3)
    assert [c.label for c in plan.variants] == ["int8 x"]
    assert plan.makespan_s == pytest.approx(13.2)
    assert not plan.search.bound_by
    assert plan.options["time_limit_s"] == 0.3

"""A pipeline as a graph: how many ops there are, where they stand, and what crosses devices."""

from __future__ import annotations

import pytest

from schedsim.pipelines import make_pipeline
from schedsim.pipelines.lower import make_template, pool_name, stream_name, to_graph
from schedsim.workloads.synthetic import uniform


@pytest.mark.parametrize(("layers", "devices", "micro"), [(2, 1, 3), (4, 2, 4), (6, 3, 2)])
def test_ops_by_count(layers, devices, micro):
    """A micro-batch: its input, F and B of each layer, the loss, a message each way per border."""
    pipeline = make_pipeline(uniform(layers), devices, micro)
    template = make_template(pipeline)
    assert len(template.ops) == 2 + 2 * layers + 2 * (devices - 1)
    graph = to_graph(pipeline)
    assert len(graph.ops) == micro * len(template.ops)
    for name, k in template.index.items():
        for j in range(micro):
            assert graph.ops[j * len(template.ops) + k].name == f"{name}.{j}"


def test_what_crosses_a_border_is_sent():
    """Read on the one device, written in the memory of the other."""
    graph = to_graph(make_pipeline(uniform(2), 2, 1))
    ops = {op.name: op for op in graph.ops}
    there, back = ops["send:a1.0"], ops["send:d1.0"]
    assert (there.stream, back.stream) == ("link:0-1", "link:1-0")
    assert set(there.pools.values()) == {pool_name(1)}
    assert set(back.pools.values()) == {pool_name(0)}
    assert set(there.writes) <= set(ops["F1.0"].reads)
    assert [ops[name].stream for name in ("F0.0", "F1.0")] == [stream_name(0), stream_name(1)]

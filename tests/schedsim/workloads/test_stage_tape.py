"""A stage written forward: its backward, and what that reads."""

import pytest

from schedsim.workloads.devices import Roofline, get_device
from schedsim.workloads.ops import ModelRecord, OpRecord, to_chain, to_graph
from schedsim.workloads.stage_tape import StageTape

ROOFLINE = Roofline(get_device("a100-80gb"), 1.0)


def branched():
    """A product read twice, a norm, and a residual sum."""
    tape = StageTape(2, {"in": 8})
    tape.norm("norm", "in", "n", parameters=4)
    tape.product("a", "n", "a", rows=1, inner=4, outer=4)
    tape.product("b", "n", "b", rows=1, inner=4, outer=4, bias=4)
    tape.pointwise("mul", ("a", "b"), "m", 8, saved=("a", "b"), flops=2)
    tape.add("residual", "in", "m", "out")
    return tape.stage("layer")


def test_every_gradient_is_written_once_and_read_after():
    """Each backward op reads what earlier ones made, or what the forward kept."""
    stage = branched()
    known = {"in", "d.out"} | {t for op in stage.forward for t in op.writes}
    for op in stage.backward:
        assert set(op.reads) <= known, op.name
        assert known.isdisjoint(op.writes), op.name
        known |= set(op.writes)
    assert "d.in" in known
    assert stage.num_parameters == 4 + 16 + 20


def test_two_readers_add_their_gradients_where_the_second_is_written():
    """``b`` is undone first; ``a`` reads its part and writes the sum; the residual adds nothing."""
    made = {op.name: (op.reads, tuple(op.writes)) for op in branched().backward}
    assert made == {
        "mul'": (("d.out", "a", "b"), ("d.a", "d.b")),
        "b'": (("d.b", "n"), ("d.n#1",)),
        "a'": (("d.a", "n", "d.n#1"), ("d.n",)),
        "norm'": (("d.n", "in", "d.out"), ("d.in",)),
    }


def test_flops_of_products_double_and_constants_need_no_gradient():
    """Two products for a weight and an input, one for a weight alone."""
    tape = StageTape(2, {"in": 8})
    tape.constants.add("given")
    tape.op(OpRecord("given", (), {"given": 8}), gradients=())
    tape.product("first", "given", "x", rows=1, inner=4, outer=4)
    tape.product("second", "in", "y", rows=1, inner=4, outer=4)
    tape.add("sum", "x", "y", "out")
    stage = tape.stage("both")
    flops = {op.name: op.flops for op in stage.backward}
    assert flops == {"given'": 0, "first'": 32, "second'": 64} or flops == {
        "first'": 32,
        "second'": 64,
    }
    assert not any(t.startswith("d.given") for op in stage.backward for t in op.writes)


def test_a_sum_with_the_input_alone_still_gives_its_gradient():
    """``out = in + f(in)`` where the sum is undone after everything else, and where it is all."""
    tape = StageTape(2, {"in": 8})
    tape.pointwise("square", ("in",), "s", 8, saved=("in",))
    tape.add("sum", "in", "s", "out")
    stage = tape.stage("both")
    written = [t for op in stage.backward for t in op.writes]
    assert written == ["d.in"]
    alone = StageTape(2, {"in": 8, "bias": 8})
    alone.add("sum", "in", "bias", "out")
    assert "d.in" in {t for op in alone.stage("one").backward for t in op.writes}


@pytest.mark.parametrize("layers", [1, 3])
def test_a_line_of_such_stages_runs(layers):
    """As a chain and as a graph, whose peak is never above the chain's."""
    import schedsim

    stage = branched()
    stages = tuple(
        type(stage)(f"layer{i}", stage.forward, stage.backward, stage.num_parameters)
        for i in range(layers)
    )
    model = ModelRecord("line", 8, stages)
    chain, graph = to_chain(model, ROOFLINE), to_graph(model, ROOFLINE)
    peaks = [
        schedsim.simulate(one, schedsim.Schedule.store_all(one)).peak_bytes
        for one in (chain, graph)
    ]
    assert peaks[1] <= peaks[0]

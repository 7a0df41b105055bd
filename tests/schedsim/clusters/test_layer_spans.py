"""What a layer takes at least, by itself."""

import pytest

from schedsim.clusters import Degrees, Training, get_architecture, get_fabric
from schedsim.clusters.float8_layer import write_layer
from schedsim.clusters.layer_recompute import kept_tensors, repeated_ops
from schedsim.clusters.layer_spans import LayerSpan, backward_ops, backward_peak_bytes, span_of
from schedsim.clusters.tape import RankOp

FABRIC = get_fabric("h100-80gb")


def layer_of(training):
    """A layer of Llama 3 8B with `training`."""
    model = get_architecture("llama3-8b")
    return write_layer(model, Degrees(), training, 1024, FABRIC, experts=False)


def test_a_message_of_the_input_runs_beside_what_comes_between():
    """It waits for the input, and not for computation that comes before the layer."""
    ops = [
        RankOp("send", ("x",), {"a": 8}, stream="context", link_s=2.0),
        RankOp("add", ("a",), {"y": 8}, link_s=1.0),
    ]
    span = span_of(ops, "x", "y", FABRIC)
    assert (span.from_input_s, span.from_compute_s) == (3.0, 1.0)
    # A message that waits for nothing here may have come before.
    early = [RankOp("send", ("kept",), {"a": 8}, stream="context", link_s=2.0), ops[1]]
    assert span_of(early, "x", "y", FABRIC) == LayerSpan(0.0, 1.0)
    # Where the last computation makes something else, the next input may be there early.
    assert span_of(ops, "x", "z", FABRIC) == LayerSpan(0.0, 1.0)


@pytest.mark.parametrize("compiled", [False, True])
def test_the_peak_of_a_backward_that_recomputes_everything(compiled):
    """An eager one holds all that it reads of its forward at once."""
    training = Training(seq=1024, recompute="full", compiled=compiled)
    layer = layer_of(training)
    ops = backward_ops(layer, repeated_ops(layer, set(), training), training)
    peak = backward_peak_bytes(layer, ops, set(), gradients=False)
    made = {t for op, is_again in ops if is_again for t in op.writes}
    read = {t for op in layer.backward for t in op.reads}
    in_all = sum(layer.sizes[t] for t in made & read if t != layer.output)
    assert peak > (0.5 if compiled else 1.0) * in_all
    most = backward_peak_bytes(layer, ops, set(), gradients=True)
    assert peak < most <= peak + sum(layer.weights.values())


def test_what_is_made_anew_does_not_live_between():
    """A compiled backward makes what attention reads once more for each of its kernels."""
    layer = layer_of(Training(seq=1024))
    ops = [
        (RankOp("turn", ("x",), {"turned": 100}), True),
        (RankOp("mix", ("turned",), {"mixed": 10}), True),
        (RankOp("o'", ("mixed", "d.out"), {"d.mixed": 50}), False),
        (RankOp("turn", ("x",), {"turned": 100}), True),
        (RankOp("mix'", ("turned", "d.mixed"), {"d.x": 1}), False),
    ]
    assert backward_peak_bytes(layer, ops, set(), gradients=True) == 151


def test_an_op_in_place_needs_no_second_tensor():
    """Nor does what nobody reads again."""
    training = Training(seq=1024, recompute="none")
    layer = layer_of(training)
    kept = kept_tensors(layer, "none", training)
    ops = [
        (RankOp("one'", ("d.out",), {"d.a": 100}), False),
        (RankOp("two'", ("d.a",), {"d.b": 100}, in_place={"d.b": "d.a"}), False),
        (RankOp("three'", ("d.b",), {"d.x": 100}, workspace_bytes=7), False),
    ]
    assert backward_peak_bytes(layer, ops, set(), gradients=True) == 207
    begin = sum(layer.sizes[t] for t in kept & {"q", "v"})
    reads = [(RankOp("all'", ("q", "v"), {}), False), *ops]
    assert backward_peak_bytes(layer, reads, kept, gradients=True) == max(begin, 207)


@pytest.mark.parametrize("state", ["megatron", "fsdp2"])
def test_megatron_recomputes_first(state):
    """PyTorch's checkpoint does when a tensor of the forward is read, here after a gather."""
    training = Training(seq=1024, recompute="full", state=state)
    model, degrees = get_architecture("llama3-8b"), Degrees(tensor=2)
    layer = write_layer(model, degrees, training, 1024, FABRIC, experts=False)
    ops = backward_ops(layer, repeated_ops(layer, set(), training), training)
    assert ops[0][1] is (state == "megatron")
    assert sum(again for _, again in ops) == len(repeated_ops(layer, set(), training))

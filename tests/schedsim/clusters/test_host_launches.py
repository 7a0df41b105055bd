"""What hosts take to launch a layer, and layers that wait for it."""

from dataclasses import replace

import pytest

import schedsim
from schedsim.clusters import Degrees, Libraries, Training, get_architecture, get_fabric, predict
from schedsim.clusters.float8_layer import write_layer
from schedsim.clusters.host_launches import as_launched, launches
from schedsim.clusters.step_bounds import StepBounds
from schedsim.clusters.tape import RankOp
from schedsim.clusters.token_routes import KERNEL_S

HOST = replace(get_fabric("h100-80gb"), launch_s=1.0, compiled_launch_s=0.5)
FREE = replace(HOST, launch_s=0.0, compiled_launch_s=0.0)


def _seconds(ops):
    return sum(op.link_s for op in ops)


def test_a_layer_takes_its_launches_or_its_seconds():
    """Five kernels of one op and one of another, a message; 1 s each, and half in compiled code."""
    ops = [
        RankOp("sent", (), {}, link_s=4 * KERNEL_S),
        RankOp("arrived", (), {}, stream="expert", link_s=2.0),
        RankOp("gate", (), {}),
    ]
    assert [launches(op) for op in ops] == [5, 1, 1]
    for training, seconds in (
        (Training(), 7.0),
        (Training(compiled=True), 3.5),
        (Training(compiled=True, state="megatron"), 7.0),  # fused kernels, launched one by one
        (Training(libraries=Libraries(traced=True)), 2.0 + 4 * KERNEL_S),  # a CUDA graph
    ):
        found = as_launched(ops, training, HOST)
        assert _seconds(found) == pytest.approx(seconds)
        assert found[1] == ops[1]  # the message takes what it took
    slow = [replace(op, link_s=10.0) if op.stream == "expert" else op for op in ops]
    assert as_launched(slow, Training(), HOST) == tuple(slow)


def test_kernels_of_a_layer_are_as_many_as_were_recorded():
    """Megatron's Qwen3 30B-A3B on 16 H100 with HybridEP: 463,348 kernels in 48 layers of 64
    micro-batches (Megatron-Bridge, ``skills/nemo-mbridge-perf-moe-comm-overlap``)."""
    training = Training(
        seq=4096,
        batch=64,
        num_micro_batches=64,
        state="megatron",
        compiled=True,
        regather=True,
        dispatcher="deepep",
        libraries=Libraries(routes="hybridep"),
    )
    degrees, model = Degrees(fsdp=16, expert=16), get_architecture("qwen3-30b-a3b")
    layer = write_layer(model, degrees, training, 4096, FREE, experts=True)
    count = sum(map(launches, (*layer.forward, *layer.backward)))
    assert count == pytest.approx(463_348 / (48 * 64), rel=0.02)


@pytest.mark.parametrize("pipeline", [1, 2])
def test_a_small_step_waits_for_its_host_and_a_large_one_does_not(pipeline):
    """GPT-2 on short sequences; Llama 3 8B on long ones. Bounds stay below."""
    real = get_fabric("h100-80gb")
    free = replace(real, launch_s=0.0, compiled_launch_s=0.0)
    degrees, training = Degrees(pipeline=pipeline), Training(seq=256, batch=2, num_micro_batches=2)
    for name, settings, waits in (
        ("gpt2-xl", training, True),
        ("llama3-8b", replace(training, seq=8192), False),
    ):
        model = get_architecture(name)
        slow, fast = (predict(model, degrees, settings, one).step_s for one in (real, free))
        assert (slow > 1.5 * fast) == waits
        assert (slow == fast) == (not waits)
        assert StepBounds(model, real).time_s(degrees, settings) <= slow * (1 + 1e-9)


def test_a_cuda_graph_is_launched_at_once():
    """A traced graph takes a small step the device's seconds alone."""
    words = {"devices": 1, "seq": 256, "flash": 2}
    eager = schedsim.cluster("gpt2-xl", **words)
    graph = schedsim.cluster("gpt2-xl", libraries=Libraries(traced=True), **words)
    assert graph.step_s < eager.step_s / 1.5

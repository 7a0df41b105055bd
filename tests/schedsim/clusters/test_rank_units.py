"""Gathers and reductions of units of parameters."""

from dataclasses import replace

from schedsim.clusters import (
    Degrees,
    Libraries,
    Training,
    get_architecture,
    get_fabric,
    step_time,
)
from schedsim.clusters.rank_memory import rank_actions
from schedsim.clusters.rank_step import RankStep
from schedsim.clusters.rank_units import REPLICA_STREAM, SHARD_STREAM
from schedsim.clusters.stages import rank_stages, split_stages


def written(degrees, training, rank=0):
    """The step of a rank of Llama 3.2 1B."""
    model = get_architecture("llama3.2-1b")
    stages = rank_stages(split_stages(model, degrees, training), degrees, rank)
    fabric = get_fabric("h100-80gb")
    step = RankStep(model, degrees, training, fabric, stages, one_stream=False)
    return step.write(rank_actions(degrees, training, rank))


def test_buffers_are_as_large_as_their_units():
    """2 bytes a parameter gathered, 4 packed, 4 over the ranks kept."""
    step = written(Degrees(fsdp=8), Training(seq=512))
    count = get_architecture("llama3.2-1b").layer_parameters(3)
    ops = {op.name: op for op in step.ops}
    assert ops["gather W 3 0"].writes["AG W 3 0"] == 2 * count
    assert ops["unpack W 3 0"].writes == {"W 3 0": 2 * count}
    assert ops["pack 3 0"].writes == {"RS 3 0": 4 * count}
    assert ops["reduce 3 0"].writes == {"SG 3 0": -(-4 * count // 8)}


def test_gradients_are_reduced_in_16_bits():
    """Packed and sent in 2 bytes, kept in 4; sums over replicas in 2 as well."""
    degrees = Degrees(fsdp=8, replicate=2)
    one, other = (written(degrees, Training(seq=512, reduce_bf16=k)) for k in (False, True))
    count = get_architecture("llama3.2-1b").layer_parameters(3)
    ops, wide = ({op.name: op for op in step.ops} for step in (other, one))
    assert ops["pack 3 0"].writes == {"RS 3 0": 2 * count}
    assert ops["reduce 3 0"].writes == {"SG 3 0": -(-4 * count // 8)}
    for name in ("pack 3 0", "reduce 3 0", "average 3 0"):
        assert 0.45 < ops[name].time_s / wide[name].time_s < 0.7


def test_every_gradient_is_reduced_once():
    """Layers and ends, whatever the order; with a pipeline after the last micro-batch."""
    for degrees, training in (
        (Degrees(fsdp=8), Training(seq=512)),
        (Degrees(fsdp=2, pipeline=2), Training(seq=512, batch=4, num_micro_batches=4)),
    ):
        for rank in range(degrees.pipeline):
            step = written(degrees, training, rank)
            layers = sum(len(stage.layers) for stage in step.stages.values())
            reduced = [op.name for op in step.ops if op.name.startswith("reduce ")]
            assert len(reduced) == layers + 1
            assert len([name for name in step.results if name.startswith("SG")]) == layers + 1


def test_separate_ends_are_gathered_apart():
    """Two units for one."""
    names = [op.name for op in written(Degrees(fsdp=8), Training(seq=512)).ops]
    assert "gather W ends" in names
    apart = written(Degrees(fsdp=8), Training(seq=512, separate_head=True))
    names = [op.name for op in apart.ops]
    assert "gather W embedding" in names
    assert "gather W head" in names


def test_copies_of_a_group_average_what_they_reduced():
    """HSDP: by a message of its own, over other links than those of one node."""
    one = {op.name: op for op in written(Degrees(fsdp=8), Training(seq=512)).ops}
    two = {op.name: op for op in written(Degrees(fsdp=8, replicate=4), Training(seq=512)).ops}
    for name in ("gather W 3 0", "reduce 3 0"):
        assert two[name].time_s == one[name].time_s
    assert "average 3 0" not in one
    assert two["average 3 0"].time_s > 0
    assert two["average 3 0"].stream == REPLICA_STREAM
    wide = {op.name: op for op in written(Degrees(fsdp=16, replicate=4), Training(seq=512)).ops}
    assert wide["average 3 0"].stream == SHARD_STREAM


def test_replicas_of_megatron_average_too():
    """Instances of its distributed optimizer: without that, a step on 512 was as one on 8."""
    settings = Training(seq=512, state="megatron")
    names = [op.name for op in written(Degrees(fsdp=8, replicate=4), settings).ops]
    assert "average 3 0" in names
    assert "average 3 0" not in [op.name for op in written(Degrees(fsdp=32), settings).ops]


def test_a_layer_waits_for_its_own_parameters_alone():
    """It is unpacked right before it runs, forward and back, as `wait_for_unshard` does."""
    step = written(Degrees(fsdp=8), Training(seq=512))
    names = [step.ops[k].name for k in step.runs]
    back = names.index("gather W 2 0", names.index("n1 15 0"))
    again = names.index("unpack W 2 0", back)
    assert names.index("unpack W 3 0") > names.index("n1 2 0")
    assert names.index("down' 3 0") < again < names.index("down' 2 0")


def test_messages_hide_behind_computation_both_ways():
    """A network on which gathers and reductions take less than the layers beside them.

    Before, a layer's backward waited for the gather of the layer after it, which came behind a
    reduction: all messages of the backward were waited for.
    """
    model, degrees = get_architecture("llama3-8b"), Degrees(fsdp=64)
    training = Training(batch=2, recompute="full")
    fast = get_fabric("a100-80gb")
    slow = replace(fast, far_bytes_per_s=fast.far_bytes_per_s / 4)
    times = [step_time(model, degrees, training, fabric) for fabric in (fast, slow)]
    messages = times[1].timeline.busy_s[SHARD_STREAM]
    assert 0.25 < messages / times[1].step_s < 0.5
    assert times[1].step_s < 1.06 * times[0].step_s


def test_packed_gradients_are_held_for_the_next_or_freed_with_their_reduction():
    """In PyTorch up to 2.4 nothing waits with the buffer."""
    for apart in (False, True):
        step = written(Degrees(fsdp=8), Training(seq=512, libraries=Libraries(packed_apart=apart)))
        last = {read: op.name for op in step.ops for read in op.reads if read.startswith("RS ")}
        assert last["RS 3 0"] == ("reduce 3 0" if apart else "free RS 3 0")

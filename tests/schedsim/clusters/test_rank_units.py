"""Gathers and reductions of units of parameters."""

from schedsim.clusters import Degrees, Libraries, Training, get_architecture, get_fabric
from schedsim.clusters.rank_memory import rank_actions
from schedsim.clusters.rank_step import RankStep
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


def test_copies_of_a_group_reduce_over_both():
    """HSDP: the rank's part is averaged over the copies too."""
    one = {op.name: op.time_s for op in written(Degrees(fsdp=8), Training(seq=512)).ops}
    two = {
        op.name: op.time_s for op in written(Degrees(fsdp=8, replicate=4), Training(seq=512)).ops
    }
    assert two["reduce 3 0"] > one["reduce 3 0"]
    assert two["gather W 3 0"] == one["gather W 3 0"]


def test_packed_gradients_are_held_for_the_next_or_freed_with_their_reduction():
    """In PyTorch up to 2.4 nothing waits with the buffer."""
    for apart in (False, True):
        step = written(Degrees(fsdp=8), Training(seq=512, libraries=Libraries(packed_apart=apart)))
        last = {read: op.name for op in step.ops for read in op.reads if read.startswith("RS ")}
        assert last["RS 3 0"] == ("reduce 3 0" if apart else "free RS 3 0")

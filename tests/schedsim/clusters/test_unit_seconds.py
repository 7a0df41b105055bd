"""What moves a unit of parameters takes what its bytes take."""

from __future__ import annotations

import pytest

from schedsim.clusters import Degrees, Training, get_architecture, get_fabric
from schedsim.clusters.stages import split_stages
from schedsim.clusters.unit_seconds import UnitSeconds

COUNT = 1 << 24
SHARD = COUNT // 4


def unit(state, **degrees):
    training = Training(seq=8, batch=1, state=state)
    return UnitSeconds(Degrees(fsdp=4, **degrees), training, get_fabric("h100-80gb"))


@pytest.mark.parametrize("state", ["fsdp2", "megatron"])
def test_gradients_in_fp32_are_reduced_to_shards(state):
    own = unit(state)
    assert own.reduce_s(COUNT) == own.link_s(4 * COUNT) > 0.0


@pytest.mark.parametrize("state", ["fsdp2", "megatron"])
def test_replicas_average_shards(state):
    once, twice = unit(state), unit(state, replicate=2)
    assert twice.reduce_s(COUNT) == once.reduce_s(COUNT)
    assert twice.average_s(SHARD) == twice.fabric.all_reduce_s(4 * SHARD, 2, 8) > 0.0
    assert once.average_s(SHARD) == 0.0


def test_whole_gradients_in_half_precision_are_reduced_whole():
    own = unit("bf16")
    assert own.reduce_s(COUNT) == own.fabric.all_reduce_s(2 * COUNT, 4, 4)
    assert unit("bf16", replicate=2).average_s(SHARD) == 0.0
    alone = UnitSeconds(Degrees(), own.training, own.fabric)
    assert alone.reduce_s(COUNT) == 0.0


def test_copies_move_what_they_read_and_write():
    own = unit("fsdp2")
    assert own.unpack_s(3 * COUNT) == own.pack_s(COUNT) == own.fabric.op_s(0, 0, 6 * COUNT)


def test_only_megatrons_optimizer_waits_for_the_next_parameters():
    fsdp, megatron = (unit(state).optimizer_s(SHARD, COUNT, 2) for state in ("fsdp2", "megatron"))
    assert megatron - fsdp == pytest.approx(unit("megatron").link_s(2 * COUNT) / 2)


def test_sums_of_a_pipelines_stage_read_and_write_fp32():
    """2 + 4 bytes are read and 4 written for each parameter; Megatron's products add themselves."""
    stages = split_stages(get_architecture("llama3-8b"), Degrees(pipeline=4), Training())
    model, seconds = get_architecture("llama3-8b"), {}
    for state in ("fsdp2", "megatron"):
        training = Training(seq=8, batch=4, state=state)
        own = UnitSeconds(Degrees(pipeline=4), training, get_fabric("h100-80gb"))
        seconds[state] = own.stage_sums_s(model, stages[1])
    count = len(stages[1].layers) * model.layer_parameters(1)
    assert seconds["fsdp2"] == pytest.approx(own.fabric.op_s(0, 0, 10 * count))
    assert seconds["megatron"] == 0.0
    once = Training(seq=8, batch=1, num_micro_batches=1)
    one = UnitSeconds(Degrees(pipeline=4), once, own.fabric)
    assert one.stage_sums_s(model, stages[1]) == 0.0

"""Layers over stages, parameters over ranks."""

import pytest

from schedsim.clusters import Degrees, Training, get_architecture, get_fabric, predict
from schedsim.clusters.stages import (
    check_policies,
    end_parameters,
    layer_shard,
    layer_share,
    rank_parameters,
    rank_stages,
    split_stages,
)
from schedsim.errors import SchedsimError


@pytest.mark.parametrize(("pipeline", "chunks"), [(1, 1), (8, 1), (16, 8), (9, 3)])
def test_every_layer_is_in_one_stage(pipeline, chunks):
    """In order, as even as can be; a stage at an end may hold none."""
    degrees, training = Degrees(pipeline=pipeline), Training(num_chunks=chunks)
    stages = split_stages(get_architecture("llama3-405b"), degrees, training)
    assert [i for stage in stages for i in stage.layers] == list(range(126))
    sizes = [len(stage.layers) for stage in stages]
    assert max(sizes) - min(sizes) <= 1
    assert sizes[0] == min(sizes) == sizes[-1]
    held = [rank_stages(stages, degrees, rank) for rank in range(pipeline)]
    assert sorted(stage.number for some in held for stage in some) == list(range(len(stages)))


@pytest.mark.parametrize(
    ("name", "degrees"),
    [
        ("llama3-8b", Degrees(fsdp=8)),
        ("llama3-70b", Degrees(fsdp=4, tensor=8, pipeline=4)),
        ("mixtral-8x7b", Degrees(fsdp=8, tensor=2, expert=8)),
        ("deepseek-v3", Degrees(fsdp=16, pipeline=8, context=2, expert=32)),
    ],
)
def test_shards_add_up_to_the_model(name, degrees):
    """To a parameter of each unit, as shares are rounded up."""
    model = get_architecture(name)
    stages = split_stages(model, degrees, Training())
    total = sum(
        rank_parameters(model, degrees, rank_stages(stages, degrees, rank))[1]
        for rank in range(degrees.pipeline)
    )
    total *= degrees.shards * degrees.tensor
    assert model.num_parameters <= total <= model.num_parameters * 1.0001
    last = model.num_layers - 1
    before = layer_share(model, degrees, last)
    assert before >= layer_shard(model, degrees, last) * degrees.shards // degrees.expert


def test_a_tied_head_on_another_rank_is_a_copy():
    """Its stage holds the embedding's matrix too."""
    model = get_architecture("llama3.2-1b")
    stages = split_stages(model, Degrees(pipeline=2), Training())
    assert end_parameters(model, stages[1], Degrees(pipeline=2))[1] == 128256 * 2048 + 2048


@pytest.mark.parametrize(
    ("degrees", "recompute", "says"),
    [
        (Degrees(), "full:0", "is not understood"),
        (Degrees(), "full:99999999999", "speaks of 99999999999 layers, and the model has 32"),
        (Degrees(), "full:20,none:13", "speaks of 33 layers"),
        (Degrees(), "full,none", "nothing is left for 'none'"),
        (Degrees(pipeline=4), "full:9", "speaks of 9 layers, and a stage has 8 at most"),
        (Degrees(pipeline=2), "full:16/full:17", "speaks of 17 layers, and a stage has 16 at most"),
    ],
)
def test_layers_that_no_stage_has_are_refused(degrees, recompute, says):
    """In a line, and before as many policies are made."""
    training = Training(seq=1024, batch=4, recompute=recompute)
    with pytest.raises(SchedsimError, match=says):
        predict(get_architecture("llama3-8b"), degrees, training, get_fabric("h100-80gb"))


@pytest.mark.parametrize("recompute", ["full:20,none", "full:20,none:12", "full:32"])
def test_layers_of_the_stage_are_taken(recompute):
    """The last policy takes what is left."""
    training = Training(seq=1024, recompute=recompute)
    check_policies(get_architecture("llama3-8b"), Degrees(), training)

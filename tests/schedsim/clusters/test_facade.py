"""``schedsim.cluster``."""

import dataclasses

import pytest

import schedsim
from schedsim.clusters import choose
from schedsim.clusters.facade import split_options, whole_degrees
from schedsim.errors import SchedsimError


def test_what_is_left_is_sharded():
    """The degree of FSDP follows from the number of devices."""
    assert whole_degrees(512, {"tensor": 8, "pipeline": 8}).fsdp == 8
    with pytest.raises(SchedsimError, match="not the product of the degrees, 16"):
        whole_degrees(8, {"fsdp": 2, "tensor": 8})


def test_names_are_known():
    """A slip is answered with the nearest."""
    assert split_options({"fsdp": 2, "seq": 4}) == ({"fsdp": 2}, {"seq": 4})
    with pytest.raises(SchedsimError) as caught:
        split_options({"sequence": 4})
    assert "seq" in caught.value.hint


def test_one_call():
    """By names alone."""
    found = schedsim.cluster("llama3.2-1b", devices=8, seq=512, recompute="full")
    assert (found.degrees.fsdp, found.training.recompute) == (8, "full")
    with pytest.raises(SchedsimError, match="--efficiency 2"):
        schedsim.cluster("llama3.2-1b", efficiency=2)


def test_devices_that_the_degrees_do_not_divide():
    """The degrees alone are named: those that are left would be a fraction."""
    with pytest.raises(SchedsimError, match="--devices 7 is not a multiple of --tensor 2"):
        whole_degrees(7, {"tensor": 2})
    says = "--devices 64 is not a multiple of --tensor 2 times --pipeline 5, which is 10"
    with pytest.raises(SchedsimError, match=says):
        whole_degrees(64, {"tensor": 2, "pipeline": 5, "expert": 4})


def test_a_model_with_few_learned_positions_gets_sequences_that_it_takes():
    """GPT-2's 1,024 by default, where others get 8,192; what is given stays."""
    assert schedsim.cluster("gpt2", devices=2).training.seq == 1024
    assert schedsim.cluster("gpt2", devices=2, seq=256).training.seq == 256
    found = choose("gpt2", 8 * 10**9, devices=2, global_batch=2, effort=2)
    assert found.best.training.seq == 1024
    with pytest.raises(SchedsimError, match="--seq 2048 exceeds the 1024 positions"):
        schedsim.cluster("gpt2", devices=2, seq=2048)


@pytest.mark.parametrize("devices", [0, -8])
def test_a_number_of_devices_that_is_none(devices):
    """Named as it was given, not as the degree that would take it."""
    with pytest.raises(SchedsimError, match=f"--devices {devices} is not"):
        schedsim.cluster("llama3.2-1b", devices=devices)


def test_a_model_of_ones_own():
    """As its name would say; a search takes it too."""
    model = schedsim.clusters.get_architecture("llama3.2-1b")
    own = dataclasses.replace(model, name="own")
    settings = {"devices": 8, "seq": 512, "recompute": "full"}
    found = schedsim.cluster(own, **settings)
    assert found.model is own
    assert found.step_s == schedsim.cluster("llama3.2-1b", **settings).step_s
    best = schedsim.clusters.choose(own, 80 * 10**9, devices=8, global_batch=8, seq=512).best
    assert best.model is own
    with pytest.raises(SchedsimError, match="preset 8 is not"):
        schedsim.cluster(8)

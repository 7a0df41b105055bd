"""``schedsim.cluster``."""

import pytest

import schedsim
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


@pytest.mark.parametrize("devices", [0, -8])
def test_a_number_of_devices_that_is_none(devices):
    """Named as it was given, not as the degree that would take it."""
    with pytest.raises(SchedsimError, match=f"--devices {devices} is not"):
        schedsim.cluster("llama3.2-1b", devices=devices)

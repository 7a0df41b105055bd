"""Names of streams and pools: which stream computes, and whose memory a pool is."""

import pytest

from schedsim.dataflow.streams import compute_stream_of, device_of, is_compute


@pytest.mark.parametrize(("stream", "pool"), [("compute", "device"), ("compute:3", "device:3")])
def test_a_device_has_one_compute_stream_and_one_pool(stream, pool):
    """Each name leads to the other."""
    assert is_compute(stream)
    assert (device_of(stream), compute_stream_of(pool)) == (pool, stream)


@pytest.mark.parametrize("stream", ["d2h", "h2d", "link:0-1", "computer", "compute-2"])
def test_other_streams_move_bytes(stream):
    """What they need beside their tensors, they need on the device."""
    assert not is_compute(stream)
    assert device_of(stream) == "device"


@pytest.mark.parametrize("pool", ["host", "disk", "devices", "device-1"])
def test_pools_of_no_device_have_no_compute_stream(pool):
    """The host's memory, and names that only begin like a device's."""
    assert compute_stream_of(pool) is None

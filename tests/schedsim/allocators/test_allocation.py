"""What an allocator made of requests, as numbers after each event: by hand."""

from __future__ import annotations

import numpy as np
import pytest

from schedsim.allocators import Requests
from schedsim.allocators.allocation import summarize

REQUESTS = Requests(
    items=np.array([0, 1, ~0, 2]),
    events=np.array([-1, 1, 3, 3]),
    item_bytes=np.array([100, 300, 200]),
    item_stream=np.zeros(3, np.int64),
    item_names=("static", "x", "y"),
    num_events=5,
    num_streams=1,
)
# By request: reserved, allocated, loose bytes, segments.
SERIES = np.array([[512, 2048, 2048, 3072], [512, 1024, 512, 1024], [0, 0, 1024, 0], [1, 2, 2, 3]])
ADDRESSES = np.array([0, 512, 0, 2048])


def made(served: int, **more):
    options = {"num_emptied": 0, "capacity_bytes": None} | more
    return summarize("best-fit", {}, REQUESTS, served, SERIES, ADDRESSES, **options)


def test_several_requests_of_an_event_count_as_one():
    """Event 3 frees the static bytes and asks for y: only what is there after both is shown."""
    found = made(4)
    assert found.requested_bytes.tolist() == [100, 400, 400, 500, 500]
    assert found.reserved_bytes.tolist() == [512, 2048, 2048, 3072, 3072]
    assert found.allocated_bytes.tolist() == [512, 1024, 1024, 1024, 1024]
    assert found.stuck_bytes.tolist() == [0, 1024, 1024, 2048, 2048]
    assert found.bound_bytes == 500
    assert (found.peak_reserved_bytes, found.peak_allocated_bytes) == (3072, 1024)
    assert (found.fits, found.failed_event, found.num_segments) == (True, None, 3)


def test_shares_at_the_peak():
    """A third of what is reserved is in use; six times as much as was asked for is taken."""
    found = made(4)
    assert found.fragmentation.tolist()[3] == pytest.approx(2 / 3)
    assert found.fragmentation_at_peak == pytest.approx(2 / 3)
    assert found.extra == pytest.approx(3072 / 500 - 1)


def test_what_fails_ends_the_series_before_its_event():
    """The third event's second request is not served: three events are known."""
    found = made(3)
    assert (found.fits, found.failed_event, found.failed_item) == (False, 3, "y")
    assert found.requested_bytes.tolist() == [100, 400, 400]
    assert found.addresses.tolist() == [0, 512, 0]
    assert "fails      asking for y" in str(found)


def test_what_fails_before_the_first_event():
    """Static bytes that find no room: nothing is known of any event, and nothing is divided by."""
    found = made(0)
    assert (found.fits, found.failed_event, found.failed_item) == (False, -1, "static")
    assert found.reserved_bytes.size == found.fragmentation.size == 0
    assert (found.fragmentation_at_peak, found.extra, found.peak_reserved_bytes) == (0.0, 0.0, 0)


@pytest.mark.parametrize(("count", "words"), [(1, "once"), (2, "2 times")])
def test_a_device_that_was_full_is_said(count, words):
    """How often, and nothing where it never was."""
    assert f"emptied    {words}, as the device was full" in str(made(4, num_emptied=count))
    assert "emptied" not in str(made(4))

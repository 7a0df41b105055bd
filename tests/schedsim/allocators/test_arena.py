"""Arenas: one range of addresses, with gaps that are joined and taken again."""

from __future__ import annotations

import pytest
from allocator_requests import KIB, MIB, play_slowly, requests, streams_of_events
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_allocator import SlowArena
from tiers import examples

from schedsim.allocators import play


@settings(max_examples=examples(150), deadline=None)
@given(
    stream=streams_of_events(num_streams=1),
    best=st.booleans(),
    capacity=st.one_of(st.none(), st.integers(2, 120).map(lambda n: n * MIB)),
)
def test_arenas_equal_the_slow_one(stream, best, capacity):
    got = play(stream, "best-fit" if best else "first-fit", capacity_bytes=capacity)
    sizes = -(-stream.item_bytes // 512) * 512
    slow = SlowArena(best, capacity)
    reserved, allocated = play_slowly(stream, sizes, slow)
    played = len(reserved)
    assert got.fits == (played == stream.items.size)
    assert got.reserved_bytes.tolist() == reserved
    assert got.allocated_bytes.tolist() == allocated


def test_the_smallest_gap_or_the_first():
    """Gaps of 4 and 2 KiB: 2 KiB go to the second of them by best fit, to the first by first."""
    steps = [4 * KIB, 512, 2 * KIB, 512, ~0, ~2, 2 * KIB]
    for allocator, address in (("best-fit", 4 * KIB + 512), ("first-fit", 0)):
        got = play(requests(steps), allocator)
        assert int(got.addresses[-1]) == address
        assert got.peak_reserved_bytes == 7 * KIB


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2)])
def test_gaps_that_touch_are_one(order):
    """In whatever order the three are freed: what is as large as all of them fits there."""
    steps = [KIB, KIB, KIB, 512, *(~i for i in order), 3 * KIB]
    got = play(requests(steps), "best-fit")
    assert int(got.addresses[-1]) == 0
    assert got.peak_reserved_bytes == 3 * KIB + 512


def test_what_is_free_at_the_end_is_no_gap():
    """The end moves back over it, so that a larger block is put there and not behind it."""
    got = play(requests([KIB, 2 * KIB, ~1, 3 * KIB]), "first-fit")
    assert (got.reserved_bytes // KIB).tolist() == [1, 3, 3, 4]
    assert int(got.addresses[-1]) == KIB
    # What is reserved is the most that was ever needed; nothing of it is stuck.
    assert got.stuck_bytes.tolist() == [0, 0, 0, 0]


def test_a_gap_between_blocks_in_use_is_stuck():
    """It can be given back to no device."""
    got = play(requests([KIB, 2 * KIB, KIB, ~1]), "first-fit")
    assert got.stuck_bytes.tolist() == [0, 0, 0, 2 * KIB]


def test_a_device_that_ends_too_soon():
    """The last byte may be used; one step of the alignment more fails, and says which request."""
    steps = [KIB, KIB, ~0, 2 * KIB]
    assert play(requests(steps), "best-fit", capacity_bytes=4 * KIB).fits
    got = play(requests(steps), "best-fit", capacity_bytes=4 * KIB - 1)
    assert not got.fits
    assert (got.failed_item, got.failed_event) == ("t2", 3)
    fine = play(requests([100, 100]), "best-fit", alignment_bytes=128)
    assert fine.peak_reserved_bytes == 256

"""Growing segments: against a slow model, and by hand, page by page."""

from __future__ import annotations

from allocator_requests import MIB, play_slowly, requests, reserved_mib, streams_of_events
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_allocator import SlowCaching
from tiers import examples

from schedsim.allocators import CachingOptions, play


@settings(max_examples=examples(150), deadline=None)
@given(
    stream=streams_of_events(),
    capacity=st.one_of(st.none(), st.integers(2, 120).map(lambda n: n * MIB)),
    max_split=st.sampled_from([None, None, 21 * MIB, 30 * MIB]),
)
def test_equals_the_slow_allocator(stream, capacity, max_split):
    options = CachingOptions(True, max_split)
    got = play(
        stream,
        "cuda-caching",
        capacity_bytes=capacity,
        expandable_segments=True,
        max_split_bytes=max_split,
    )
    slow = SlowCaching(capacity, True, max_split)
    reserved, allocated = play_slowly(stream, options.block_bytes(stream.item_bytes), slow)
    played = len(reserved)
    assert got.fits == (played == stream.items.size)
    assert got.addresses.size == played
    assert got.reserved_bytes.tolist() == reserved
    assert got.allocated_bytes.tolist() == allocated
    assert got.num_emptied == slow.emptied
    if capacity is not None:
        assert got.peak_reserved_bytes <= capacity


def test_a_batch_that_grows_leaves_slivers_and_growing_segments_do_not():
    """The example of the notes: a step with a batch of N, then one of N + 1."""
    steps = []
    for batch in (10, 11):
        steps += [batch * 4 * MIB] * 5
        made = len([s for s in steps if s >= 0])
        steps += [~i for i in range(made - 5, made)]
    # Segments of 40 MiB are of no use for tensors of 44 MiB.
    assert max(reserved_mib(steps)) == 5 * 40 + 5 * 44
    assert max(reserved_mib(steps, expandable_segments=True)) == 5 * 44


def test_pages_are_added_where_the_free_end_is():
    """Large pages of 20 MiB: 30 take two; 15 of which 10 are free take one more, not a segment."""
    got = play(requests([30 * MIB, 15 * MIB]), expandable_segments=True)
    assert (got.reserved_bytes // MIB).tolist() == [40, 60]
    assert got.num_segments == 1
    # The second block begins right behind the first, over the border of two pages.
    assert int(got.addresses[1] - got.addresses[0]) == 30 * MIB


def test_small_and_large_requests_grow_segments_of_their_own():
    """Small pages are of 2 MiB."""
    got = play(requests([MIB, 5 * MIB, MIB, 512]), expandable_segments=True)
    assert (got.reserved_bytes // MIB).tolist() == [2, 22, 22, 24]
    assert got.num_segments == 2


def test_a_full_device_gets_whole_free_pages_back_from_the_middle():
    """Of 15 | 50 | 15 MiB on pages of 20, the 50 between are freed: pages 1 and 2 lie within them.

    On a device of 80 a small request finds 40 MiB of them again; the pages that hold anything stay,
    and both neighbours keep their place.
    """
    steps = [15 * MIB, 50 * MIB, 15 * MIB, ~1, 512, 45 * MIB]
    got = play(requests(steps), expandable_segments=True, capacity_bytes=80 * MIB)
    assert (got.reserved_bytes[:5] // MIB).tolist() == [20, 80, 80, 80, 42]
    assert got.num_emptied >= 1
    # 45 MiB need the 40 and 5 more on the pages beside them: 42 + 40 is over 80.
    assert not got.fits
    assert play(requests(steps), expandable_segments=True, capacity_bytes=82 * MIB).fits

"""Fixed segments of PyTorch's caching allocator: against a slow model, and by its rules."""

from __future__ import annotations

from allocator_requests import KIB, MIB, play_slowly, requests, reserved_mib, streams_of_events
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
    options = CachingOptions(False, max_split)
    got = play(
        stream,
        "cuda-caching",
        capacity_bytes=capacity,
        max_split_bytes=max_split,
    )
    slow = SlowCaching(capacity, False, max_split)
    reserved, allocated = play_slowly(stream, options.block_bytes(stream.item_bytes), slow)
    played = len(reserved)
    assert got.fits == (played == stream.items.size)
    assert got.addresses.size == played
    assert got.reserved_bytes.tolist() == reserved
    assert got.allocated_bytes.tolist() == allocated
    assert got.num_emptied == slow.emptied
    if capacity is not None:
        assert got.peak_reserved_bytes <= capacity


@settings(max_examples=examples(100), deadline=None)
@given(
    stream=streams_of_events(max_events=80),
    allocator=st.sampled_from(["cuda-caching", "growing", "best-fit", "first-fit"]),
)
def test_blocks_never_overlap(stream, allocator):
    options = {}
    if allocator == "growing":
        allocator, options = "cuda-caching", {"expandable_segments": True}
    got = play(stream, allocator, **options)
    live = {}
    for item, address in zip(stream.items.tolist(), got.addresses.tolist(), strict=True):
        if item < 0:
            assert live.pop(~item)[0] == address
            continue
        end = address + int(stream.item_bytes[item])
        assert all(end <= start or address >= stop for start, stop in live.values())
        live[item] = (address, end)
    assert got.peak_reserved_bytes >= got.peak_allocated_bytes >= got.bound_bytes
    assert (got.reserved_bytes >= got.allocated_bytes).all()
    assert (got.allocated_bytes >= got.requested_bytes).all()
    assert (got.stuck_bytes >= 0).all()


def test_small_requests_are_packed_into_segments_of_2_mib():
    assert reserved_mib([1]) == [2]
    assert reserved_mib([MIB, MIB]) == [2, 2]
    assert reserved_mib([MIB, MIB, 1]) == [2, 2, 4]
    assert reserved_mib([512 * KIB] * 5) == [2, 2, 2, 2, 4]


def test_requests_between_1_and_10_mib_share_segments_of_20_mib():
    assert reserved_mib([MIB + 1]) == [20]
    assert reserved_mib([5 * MIB] * 5) == [20, 20, 20, 20, 40]
    # What is left of a block is split off where it is more than 1 MiB: 20 - 19 is not,
    # and the whole segment goes to the request.
    assert reserved_mib([9 * MIB, 9 * MIB, 2 * MIB, 2 * MIB]) == [20, 20, 20, 40]
    got = play(requests([19 * MIB // 2] * 2))
    assert got.peak_allocated_bytes == 9.5 * MIB + 10.5 * MIB


def test_larger_requests_have_their_own_segments_in_steps_of_2_mib():
    assert reserved_mib([10 * MIB]) == [10]
    assert reserved_mib([10 * MIB + 1]) == [12]
    assert reserved_mib([23 * MIB]) == [24]
    # 24 - 23 is not more than 1 MiB: not split, all 24 are in use.
    assert play(requests([23 * MIB])).peak_allocated_bytes == 24 * MIB
    assert play(requests([23 * MIB - 512])).peak_allocated_bytes == 23 * MIB - 512


def test_cached_segments_are_returned_when_the_device_is_full():
    steps = [40 * MIB, ~0, 44 * MIB]
    assert reserved_mib(steps) == [40, 40, 84]
    got = play(requests(steps), capacity_bytes=60 * MIB)
    assert got.fits
    assert got.num_emptied == 1
    assert got.reserved_bytes.tolist() == [40 * MIB, 40 * MIB, 44 * MIB]


def test_a_device_too_full_for_what_is_split_off_fails():
    """38 MiB free of 80, in two places: a request of 36 finds no room."""
    steps = [80 * MIB, ~0, 2 * MIB, 30 * MIB, 40 * MIB, ~2, 36 * MIB]
    got = play(requests(steps), capacity_bytes=80 * MIB)
    assert not got.fits
    assert got.failed_event == 6
    assert got.failed_item == "t4"
    assert (play(requests(steps)).requested_bytes <= 80 * MIB).all()
    assert play(requests(steps), capacity_bytes=116 * MIB).fits


def test_blocks_do_not_go_from_stream_to_stream():
    same = play(requests([30 * MIB, ~0, 30 * MIB], [0, 0]))
    other = play(requests([30 * MIB, ~0, 30 * MIB], [0, 1]))
    assert (same.peak_reserved_bytes, other.peak_reserved_bytes) == (30 * MIB, 60 * MIB)


def test_oversize_blocks_are_not_split():
    """``max_split_size_mb``: a cached block of 100 MiB serves neither 30 nor 60, but 85 MiB."""
    for size, expected in ((30, 130), (60, 160), (85, 100)):
        got = play(requests([100 * MIB, ~0, size * MIB]), "cuda-caching", max_split_bytes=50 * MIB)
        assert got.peak_reserved_bytes == expected * MIB


def test_a_failed_request_returns_oversize_blocks_first():
    """``max_split_size_mb``: cached blocks too large to be split are returned, no more than needed.

    60 and 80 MiB are cached on a device of 150. A request of 70 takes the 80, as less than 20 are
    wasted, and one of 55 the 60. One of 40 is below the limit, takes neither, and has the 60
    returned. For 90 both are returned, the larger first, as neither is enough. Of 146 both are
    too few: only then everything else is returned, and counted.
    """
    steps = [60 * MIB, 80 * MIB, ~0, ~1]
    for size, reserved, emptied in (
        *((70, 140, 0), (55, 140, 0), (40, 120, 0), (90, 90, 0), (146, 146, 1)),
    ):
        got = play(
            requests([*steps, size * MIB]), max_split_bytes=50 * MIB, capacity_bytes=150 * MIB
        )
        assert got.fits
        assert (int(got.reserved_bytes[-1]), got.num_emptied) == (reserved * MIB, emptied), size

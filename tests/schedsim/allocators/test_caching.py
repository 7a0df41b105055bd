"""The caching allocator against a slow one, and against what PyTorch's notes say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_allocator import Full, SlowArena, SlowCaching

from schedsim import SchedsimError
from schedsim.allocators import CachingOptions, Requests, play

KIB, MIB = 1 << 10, 1 << 20


def requests(steps, streams=None):
    """Events of a list of sizes (requests, numbered in order) and negative numbers (~item)."""
    sizes = [step for step in steps if step >= 0]
    numbers = iter(range(len(sizes)))
    items = np.array([next(numbers) if step >= 0 else step for step in steps], dtype=np.int64)
    streams = np.zeros(len(sizes), dtype=np.int64) if streams is None else np.array(streams)
    return Requests(
        items=items,
        events=np.arange(items.size),
        item_bytes=np.array(sizes, dtype=np.int64),
        item_stream=streams,
        item_names=tuple(f"t{i}" for i in range(len(sizes))),
        num_events=items.size,
        num_streams=int(streams.max(initial=0)) + 1,
    )


# Sizes near every limit of the rules, and any others.
SIZES = st.one_of(
    st.integers(1, 4 * KIB),
    st.integers(1, 40 * MIB),
    st.builds(
        lambda base, more: max(1, base + more),
        st.sampled_from([512, MIB, 2 * MIB, 10 * MIB, 19 * MIB, 20 * MIB, 22 * MIB, 40 * MIB]),
        st.sampled_from([-513, -512, -1, 0, 1, 512, 513]),
    ),
)


@st.composite
def streams_of_events(draw, max_events=60, num_streams=2):
    """Requests and releases in any order, each release after its request."""
    steps, live, made, streams = [], [], 0, []
    for _ in range(draw(st.integers(1, max_events))):
        if live and draw(st.booleans()) and draw(st.booleans()) is False:
            steps.append(~live.pop(draw(st.integers(0, len(live) - 1))))
        else:
            steps.append(draw(SIZES))
            streams.append(draw(st.integers(0, num_streams - 1)))
            live.append(made)
            made += 1
    return requests(steps, streams)


def play_slowly(stream, sizes, slow):
    """Reserved and allocated bytes after each event, up to the one that fails."""
    reserved, allocated = [], []
    for item in stream.items.tolist():
        try:
            if item < 0:
                slow.release(~item)
            elif isinstance(slow, SlowCaching):
                slow.allocate(item, int(sizes[item]), int(stream.item_stream[item]))
            else:
                slow.allocate(item, int(sizes[item]))
        except Full:
            break
        reserved.append(slow.reserved())
        allocated.append(slow.allocated())
    return reserved, allocated


@settings(max_examples=300, deadline=None)
@given(
    stream=streams_of_events(),
    capacity=st.one_of(st.none(), st.integers(2, 120).map(lambda n: n * MIB)),
    expandable=st.booleans(),
    max_split=st.sampled_from([None, None, 21 * MIB, 30 * MIB]),
)
def test_equals_the_slow_allocator(stream, capacity, expandable, max_split):
    options = CachingOptions(expandable, max_split)
    got = play(
        stream,
        "cuda-caching",
        capacity_bytes=capacity,
        expandable_segments=expandable,
        max_split_bytes=max_split,
    )
    slow = SlowCaching(capacity, expandable, max_split)
    reserved, allocated = play_slowly(stream, options.block_bytes(stream.item_bytes), slow)
    played = len(reserved)
    assert got.fits == (played == stream.items.size)
    assert got.addresses.size == played
    assert got.reserved_bytes.tolist() == reserved
    assert got.allocated_bytes.tolist() == allocated
    assert got.num_emptied == slow.emptied
    if capacity is not None:
        assert got.peak_reserved_bytes <= capacity


@settings(max_examples=150, deadline=None)
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


@settings(max_examples=100, deadline=None)
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


def reserved_mib(steps, **options):
    return (play(requests(steps), **options).reserved_bytes / MIB).tolist()


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


def test_settings_are_written_like_the_environment_variable():
    text = "expandable_segments:True,max_split_size_mb:64,roundup_power2_divisions:4"
    assert str(CachingOptions.parse(text)) == text
    assert CachingOptions.parse("") == CachingOptions()
    sizes = np.array([1 << 20, (1 << 20) + 1, 3 << 20, (1 << 40) + 1])
    step = CachingOptions(roundup_power2_divisions=8).block_bytes(sizes)
    assert step.tolist() == [1 << 20, (1 << 20) + (1 << 17), 3 << 20, (1 << 40) + (1 << 37)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("garbage_collection_threshold:0.8", "not modelled"),
        ("max_split_size_mb:20", "not more than 20 MiB"),
        ("expandable_segments:yes", "not modelled"),
        ("roundup_power2_divisions:3", "power of two"),
    ],
)
def test_settings_that_are_refused(text, says):
    with pytest.raises(SchedsimError, match=says) as caught:
        CachingOptions.parse(text)
    assert caught.value.hint


def test_unknown_names_are_refused():
    with pytest.raises(SchedsimError, match="unknown allocator"):
        play(requests([1]), "buddy")
    with pytest.raises(SchedsimError, match="no option 'max_split'"):
        play(requests([1]), "cuda-caching", max_split=1)
    with pytest.raises(SchedsimError, match="no option"):
        play(requests([1]), "best-fit", expandable_segments=True)

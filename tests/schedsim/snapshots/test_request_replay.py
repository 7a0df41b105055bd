"""The requests of a recorded run, replayed under other settings."""

from __future__ import annotations

from dataclasses import replace

import pytest
from snapshot_files import FORWARD, MIB, block, document, event, recorded, small, written

from schedsim.allocators import play
from schedsim.errors import SchedsimError
from schedsim.snapshots import examine, peak_of, read_snapshot, replays, requests_of
from schedsim.snapshots.request_replay import recorded_conf


@pytest.mark.parametrize("seed", range(5))
def test_replays_ask_for_what_was_asked(tmp_path, seed):
    """The peak of the replayed requests is the recorded one, rounded block by block."""
    content, _ = recorded(seed, 3, 80)
    snapshot = read_snapshot(written(tmp_path, content))
    requests = requests_of(snapshot)
    live, most = {}, 0
    for item in requests.items.tolist():
        if item < 0:
            del live[~item]
        else:
            live[item] = int(requests.item_bytes[item])
        most = max(most, sum(live.values()))
    assert most == peak_of(snapshot).requested_bytes
    got = play(requests, "cuda-caching")
    assert replays(snapshot, [""])[0].peak_reserved_bytes == got.peak_reserved_bytes


def test_what_was_there_before_comes_first(tmp_path):
    """By address: 900 freed in the record, 1000 alive at its end; then the record itself.

    The address of the 900 is used again by a request of its own.
    """
    events = [
        event("free_completed", 0, 900),
        event("alloc", 0, 70, FORWARD),
        event("segment_alloc", 4 * MIB, 2 * MIB),
        event("free_requested", 0, 70),
        event("free_completed", 0, 70),
    ]
    content = document([(0, 2 * MIB, [block(0, 70, False), block(1024, 1000, True)])], events)
    requests = requests_of(read_snapshot(written(tmp_path, content)))
    assert requests.item_bytes.tolist() == [900, 1000, 70]
    assert requests.item_names == ("before the record", "before the record", "net.py:7 forward")
    assert requests.items.tolist() == [0, 1, ~0, 2, ~2]
    assert requests.events.tolist() == [-1, -1, 0, 1, 4]
    assert (requests.num_events, requests.num_streams) == (5, 1)


def test_a_model_from_before_the_record_lies_as_it_lay(tmp_path):
    """A record often starts behind the model: its blocks share segments as the model built them.

    Largest first, two segments would not be enough.
    """
    sizes, segments = (9 * MIB, 5 * MIB, 6 * MIB), []
    for start in (0, 20 * MIB):
        blocks = [block(start + sum(sizes[:i]), size, True) for i, size in enumerate(sizes)]
        segments.append((start, 20 * MIB, blocks))
    content = document(segments, [event("alloc", 40 * MIB, 70, FORWARD)])
    content["segments"].append(
        document([(40 * MIB, 2 * MIB, [block(40 * MIB, 70, True)])], [])["segments"][0]
    )
    snapshot = read_snapshot(written(tmp_path, content))
    assert replays(snapshot, [""])[0].peak_reserved_bytes == 42 * MIB


def test_streams_are_numbered_as_they_appear(tmp_path):
    """By their handles, which are addresses."""
    events = [
        event("alloc", 0, 10, FORWARD, stream=70),
        event("alloc", 512, 10, FORWARD, stream=0),
        event("alloc", 1024, 10, FORWARD, stream=70),
    ]
    blocks = [block(at, 10, True) for at in (0, 512, 1024)]
    requests = requests_of(
        read_snapshot(written(tmp_path, document([(0, 2 * MIB, blocks)], events)))
    )
    assert requests.item_stream.tolist() == [0, 1, 0]
    assert requests.num_streams == 2


def test_other_settings_reserve_something_else(tmp_path):
    """30 MiB, then 44 after it is freed: fixed segments keep both, growing ones go on in one.

    Each setting starts with an empty cache.
    """
    events = [
        event("alloc", 0, 30 * MIB, FORWARD),
        event("free_completed", 0, 30 * MIB),
        event("alloc", 64 * MIB, 44 * MIB, FORWARD),
        event("free_completed", 64 * MIB, 44 * MIB),
    ]
    left = [(0, 30 * MIB, []), (64 * MIB, 44 * MIB, [])]
    snapshot = read_snapshot(written(tmp_path, document(left, events)))
    confs = ("", "expandable_segments:True", "")
    found = replays(snapshot, confs)
    assert [one.conf for one in found] == list(confs)
    assert [one.peak_reserved_bytes // MIB for one in found] == [74, 60, 74]
    assert {one.peak_allocated_bytes // MIB for one in found} == {44}
    with pytest.raises(SchedsimError):
        replays(snapshot, ["no_such_setting:1"])


@pytest.mark.parametrize(
    ("settings", "conf"),
    [
        ({}, ""),
        ({"expandable_segments": True, "max_split_size": -1}, "expandable_segments:True"),
        ({"max_split_size": 64 * MIB}, "max_split_size_mb:64"),
        ({"roundup_power2_divisions": {"1": 8, "2": 8}}, "roundup_power2_divisions:8"),
        ({"roundup_power2_divisions": {"1": 8, "2": 4}}, ""),
        ({"max_split_size": 1}, ""),
    ],
)
def test_a_run_is_compared_with_the_setting_that_it_was_recorded_under(tmp_path, settings, conf):
    """Which is not tried twice, and is not recommended."""
    snapshot = replace(read_snapshot(small(tmp_path)), settings=settings)
    assert recorded_conf(snapshot) == conf
    found = [one.conf for one in examine(snapshot).settings]
    assert found[0] == conf
    assert len(found) == len(set(found))
    assert [one.conf for one in examine(snapshot, ["max_split_size_mb:32"]).settings] == [
        conf,
        "max_split_size_mb:32",
    ]

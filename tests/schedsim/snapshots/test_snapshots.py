"""Memory snapshots: read without running anything, examined against bookkeeping done forward."""

from __future__ import annotations

import pickle
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedsim.allocators import play
from schedsim.cli.app import run
from schedsim.errors import SchedsimError
from schedsim.snapshots import examine, peak_of, read_snapshot, replays, requests_of
from schedsim.snapshots.history import rounded

MIB = 2**20
FORWARD = [{"filename": "/me/net.py", "line": 7, "name": "forward"}]
OPTIMIZER = [{"filename": "/p/torch/optim/adamw.py", "line": 9, "name": "_init_group"}]


def block(address, size, live, frames=()):
    """A block as the file has it."""
    state = "active_allocated" if live else "inactive"
    return {
        "address": address,
        "size": rounded(size),
        "requested_size": size,
        "state": state,
        "frames": list(frames),
    }


def event(action, address, size, frames=(), stream=0):
    """An event as the file has it."""
    return {
        "action": action,
        "addr": address,
        "size": size,
        "stream": stream,
        "frames": list(frames),
    }


def document(segments, events):
    """A snapshot of one device."""
    return {
        "segments": [
            {
                "device": 0,
                "address": address,
                "total_size": size,
                "stream": 0,
                "is_expandable": False,
                "blocks": blocks,
            }
            for address, size, blocks in segments
        ],
        "device_traces": [events],
        "allocator_settings": {"expandable_segments": False},
    }


def written(tmp_path: Path, content) -> Path:
    """The file of it."""
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(content))
    return path


def small(tmp_path):
    """A parameter from before, an activation that is freed, an optimizer's state that stays.

    Requested: 1000 before, then 1000 + 3000 = 4000, then 4000 + 500 = 4500, then 1500.
    """
    content = document(
        [
            (
                0,
                2 * MIB,
                [
                    block(0, 1000, True),
                    block(1024, 3000, False),
                    block(4096, 500, True, OPTIMIZER),
                ],
            )
        ],
        [
            event("alloc", 1024, 3000, FORWARD),
            event("alloc", 4096, 500, OPTIMIZER),
            event("free_requested", 1024, 3000),
            event("free_completed", 1024, 3000),
        ],
    )
    return written(tmp_path, content)


def test_the_peak_and_its_holders(tmp_path):
    """By hand: 4500 bytes after the second event, of three blocks with a role each."""
    findings = examine(read_snapshot(small(tmp_path)))
    assert (findings.peak.requested_bytes, findings.peak.event) == (4500, 1)
    assert findings.peak.rounded_bytes == 1024 + 3072 + 512
    wanted = {"activation": 3000, "optimizer": 500, "before the record": 1000}
    assert {role: size for role, size in findings.by_role.items() if size} == wanted
    assert [group.place for group in findings.groups[:1]] == ["net.py:7 forward"]
    assert findings.savable_bytes == 0  # one activation: the largest is needed
    assert findings.reserved.reserved_bytes == 2 * MIB
    assert findings.cached_bytes == 0
    # Of equal moments the first, before any event: one block of 1024 bytes in the segment.
    assert findings.stuck_bytes == 2 * MIB - 1024


@pytest.mark.parametrize(
    "content",
    [
        [],
        {},
        {"segments": [], "device_traces": [[{"action": "explode", "addr": 0, "size": 1}]]},
        {"segments": [{"device": 0}], "device_traces": [[]]},
        {"segments": 3, "device_traces": [[]]},
    ],
)
def test_other_files_are_refused(tmp_path, content):
    """With the way to make one for a hint."""
    with pytest.raises(SchedsimError, match="is no memory snapshot") as caught:
        read_snapshot(written(tmp_path, content))
    assert "_record_memory_history" in caught.value.hint


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data):
    """No other error comes out of a broken file, and cutting one off breaks it."""
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=".pickle") as file:
        file.write(data)
        file.flush()
        with pytest.raises(SchedsimError):
            read_snapshot(file.name)


def recorded(seed, num_before, num_events):
    """A run with bookkeeping done forward: the file, and (requested, reserved) after each event."""
    rng = random.Random(seed)
    live: dict[int, int] = {}
    segments: dict[int, int] = {}
    at = 0
    for _ in range(num_before):
        size = rng.randrange(1, 5000)
        live[at], segments[at] = size, 8192
        at += 8192
    levels = [(sum(live.values()), sum(segments.values()))]
    events = []
    for _ in range(num_events):
        if live and rng.random() < 0.5:
            address = rng.choice(sorted(live))
            size = live.pop(address)
            events.append(event("free_completed", address, size))
            levels.append((sum(live.values()), sum(segments.values())))
            if rng.random() < 0.3:
                events.append(event("segment_free", address, segments.pop(address)))
                levels.append((sum(live.values()), sum(segments.values())))
        else:
            segments[at] = 8192
            events.append(event("segment_alloc", at, 8192))
            levels.append((sum(live.values()), sum(segments.values())))
            live[at] = rng.randrange(1, 5000)
            events.append(event("alloc", at, live[at], FORWARD))
            levels.append((sum(live.values()), sum(segments.values())))
            at += 8192
    left = [
        (a, size, [block(a, live[a], True)] if a in live else [block(a, size, False)])
        for a, size in segments.items()
    ]
    return document(left, events), levels


@pytest.mark.parametrize("seed", range(20))
def test_the_peak_is_that_of_forward_bookkeeping(tmp_path, seed):
    """Random runs, with blocks from before the record: both peaks, and what is alive then."""
    content, levels = recorded(seed, seed % 4, 60)
    snapshot = read_snapshot(written(tmp_path, content))
    for column, of in enumerate(("requested", "reserved")):
        moment = peak_of(snapshot, of=of)
        most = max(level[column] for level in levels)
        assert (moment.requested_bytes, moment.reserved_bytes)[column] == most
        assert levels[moment.event + 1] == (moment.requested_bytes, moment.reserved_bytes)
        assert sum(b.requested_bytes for b in moment.blocks) == moment.requested_bytes
        assert sum(moment.segments.values()) == moment.reserved_bytes


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


def test_the_command(tmp_path, capsys):
    """A table for people, one document for programs."""
    path = str(small(tmp_path))
    assert run(["explain", path, "--alloc-conf", "expandable_segments:True"]) == 0
    out = capsys.readouterr().out
    assert "net.py:7 forward" in out
    assert "expandable_segments:True" in out
    assert run(["explain", path, "--json"]) == 0
    assert '"schema": "schedsim.snapshot-findings/1"' in capsys.readouterr().out
    assert run(["explain", path, "--layers", "3"]) == 2
    assert "takes no other workload" in capsys.readouterr().err
    assert run(["explain", "--layers", "3", "--alloc-conf", "x:1"]) == 2


def test_simulate_replays_a_snapshot(tmp_path, capsys):
    """Under the allocator and settings that are named."""
    path = str(small(tmp_path))
    assert run(["simulate", path, "--allocator", "cuda-caching"]) == 0
    assert "reserved" in capsys.readouterr().out
    assert run(["simulate", path]) == 2
    assert "--allocator" in capsys.readouterr().err

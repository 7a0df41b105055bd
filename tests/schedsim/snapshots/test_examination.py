"""What a snapshot says of its peak: roles, places, what is cached and what is stuck."""

from __future__ import annotations

from snapshot_files import FORWARD, MIB, OPTIMIZER, block, document, event, small, written

from schedsim.snapshots import examine, read_snapshot


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


def test_cached_segments_and_gaps_are_told_apart(tmp_path):
    """Three segments of 2 MiB: one is wholly free, one full, one has a block of 1 MiB."""
    content = document(
        [
            (0, 2 * MIB, [block(0, 2 * MIB, True, FORWARD)]),
            (4 * MIB, 2 * MIB, [block(4 * MIB, 2 * MIB, False)]),
            (8 * MIB, 2 * MIB, [block(8 * MIB, MIB, True, FORWARD), block(9 * MIB, MIB, False)]),
        ],
        [],
    )
    findings = examine(read_snapshot(written(tmp_path, content)), [""])
    assert findings.reserved.reserved_bytes == 6 * MIB
    assert (findings.cached_bytes, findings.stuck_bytes) == (2 * MIB, MIB)
    assert findings.reserved.unused_bytes == 3 * MIB
    # All but the largest activation might go.
    assert findings.savable_bytes == MIB


def test_groups_come_by_size_and_their_bytes_add_up(tmp_path):
    """Blocks of one place are one group; of equal sizes the order is that of names."""
    other = [{"filename": "/me/net.py", "line": 9, "name": "forward"}]
    blocks = [
        block(0, 300, True, FORWARD),
        block(512, 200, True, other),
        block(1024, 200, True, FORWARD),
        block(1536, 500, True, OPTIMIZER),
    ]
    content = document([(0, 2 * MIB, blocks)], [])
    findings = examine(read_snapshot(written(tmp_path, content)), [""])
    assert [(g.role, g.place, g.num_blocks, g.requested_bytes) for g in findings.groups] == [
        ("activation", "net.py:7 forward", 2, 500),
        ("optimizer", findings.groups[1].place, 1, 500),
        ("activation", "net.py:9 forward", 1, 200),
    ]
    assert sum(findings.by_role.values()) == findings.peak.requested_bytes == 1200
    written_out = findings.to_dict()
    assert written_out["groups"][0]["requested_bytes"] == 500
    assert written_out["peak"]["rounded_bytes"] == 4 * 512
    assert written_out["settings"] == [
        {"conf": "", "peak_reserved_bytes": 2 * MIB, "peak_allocated_bytes": 4 * 512}
    ]


def test_without_a_backward_pass_a_plan_saves_nothing(tmp_path):
    """As in a server, whose caches are made in forward passes and stay."""
    events = [event("segment_alloc", 0, 2 * MIB)]
    events += [event("alloc", at, 1000, FORWARD) for at in (0, 1024)]
    held = [block(0, 1000, True, FORWARD), block(1024, 1000, True, FORWARD)]
    content = document([(0, 2 * MIB, held)], events)
    assert examine(read_snapshot(written(tmp_path, content)), [""]).savable_bytes == 0
    events.append(event("alloc", 2048, 1000))
    held.append(block(2048, 1000, True))
    content = document([(0, 2 * MIB, held)], events)
    assert examine(read_snapshot(written(tmp_path, content)), [""]).savable_bytes == 1000

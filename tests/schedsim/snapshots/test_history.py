"""The peak of a recorded run, found from its end backward."""

from __future__ import annotations

import pytest
from snapshot_files import FORWARD, MIB, OPTIMIZER, block, document, event, recorded, written

from schedsim.errors import SchedsimError
from schedsim.snapshots import peak_of, read_snapshot
from schedsim.snapshots.history import rounded


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


def test_pieces_of_a_growing_segment_come_and_go(tmp_path):
    """4 MiB mapped, 2 in the middle given back, mapped again: each piece is where it was."""
    events = [
        event("segment_map", 0, 8 * MIB),
        event("alloc", 0, 8 * MIB, FORWARD),
        event("free_completed", 0, 8 * MIB),
        event("segment_unmap", 2 * MIB, 2 * MIB),
        event("segment_unmap", 6 * MIB, 2 * MIB),
        event("alloc", 4 * MIB, MIB, FORWARD),
    ]
    left = [
        (0, 2 * MIB, [block(0, 2 * MIB, False)]),
        (4 * MIB, 2 * MIB, [block(4 * MIB, MIB, True)]),
    ]
    snapshot = read_snapshot(written(tmp_path, document(left, events)))
    most = peak_of(snapshot, of="reserved")
    assert (most.event, most.reserved_bytes) == (0, 8 * MIB)
    assert sum(most.segments.values()) == 8 * MIB
    peak = peak_of(snapshot)
    assert (peak.event, peak.requested_bytes, peak.blocks[0].freed) == (1, 8 * MIB, True)
    assert peak.unused_bytes == 0


@pytest.mark.parametrize(
    ("at", "before"),
    [(0, {2: 4}), (2, {0: 2, 4: 2}), (4, {0: 4})],
)
def test_a_piece_cut_out_of_a_segment(tmp_path, at, before):
    """What is mapped last lies within what the snapshot shows as one segment at its end.

    At either end of it nothing is left there, not even a piece of no bytes.
    """
    events = [
        event("alloc", 0, MIB, FORWARD),
        event("free_completed", 0, MIB),
        event("segment_map", at * MIB, 2 * MIB),
        event("alloc", at * MIB, 512, FORWARD),
    ]
    left = [(0, 6 * MIB, [block(0, MIB, False), block(at * MIB, 512, True)])]
    peak = peak_of(read_snapshot(written(tmp_path, document(left, events))))
    assert (peak.event, peak.requested_bytes) == (0, MIB)
    assert peak.segments == {k * MIB: size * MIB for k, size in before.items()}


def test_pieces_that_were_mapped_at_once(tmp_path):
    """The first half of what was mapped at once is given back: at the end, two pieces touched."""
    events = [
        event("segment_map", 0, 4 * MIB),
        event("alloc", 0, 3 * MIB, FORWARD),
        event("free_completed", 0, 3 * MIB),
        event("segment_unmap", 0, 2 * MIB),
    ]
    left = [(2 * MIB, 2 * MIB, [block(2 * MIB, MIB, False)])]
    snapshot = read_snapshot(written(tmp_path, document(left, events)))
    assert peak_of(snapshot, of="reserved").segments == {0: 2 * MIB, 2 * MIB: 2 * MIB}
    events.insert(0, event("oom", 0, MIB))
    left[0] = (2 * MIB, 2 * MIB, [])
    assert (
        peak_of(read_snapshot(written(tmp_path, document(left, events[:1])))).requested_bytes == 0
    )


@pytest.mark.parametrize("left_out", ["alloc", "free_completed", "segment_free"])
def test_a_record_without_some_actions_is_refused(tmp_path, left_out):
    """`skip_actions` leaves events out, and what was alive is then not known."""
    content, _ = recorded(3, 0, 200)
    content["device_traces"][0] = [
        one for one in content["device_traces"][0] if one["action"] != left_out
    ]
    with pytest.raises(SchedsimError, match="do not lead to its segments") as caught:
        peak_of(read_snapshot(written(tmp_path, content)))
    assert "skip_actions" in caught.value.hint


def test_an_address_used_twice_has_the_stack_of_its_last_request(tmp_path):
    """And a block whose request was not recorded has that which the allocator still knows."""
    events = [
        event("alloc", 0, 100, OPTIMIZER),
        event("free_completed", 0, 100),
        event("alloc", 0, 200, FORWARD),
    ]
    blocks = [block(0, 200, True), block(512, 50, True, OPTIMIZER), block(1024, 40, True)]
    peak = peak_of(read_snapshot(written(tmp_path, document([(0, 2 * MIB, blocks)], events))))
    assert [b.requested_bytes for b in peak.blocks] == [200, 50, 40]
    assert [b.known for b in peak.blocks] == [True, True, False]
    assert peak.blocks[0].frames[0].name == "forward"
    assert peak.blocks[1].frames[0].name == "_init_group"


def test_a_snapshot_of_nothing_is_refused(tmp_path):
    """With what to call before the first step."""
    with pytest.raises(SchedsimError, match="holds no memory of the device") as caught:
        peak_of(read_snapshot(written(tmp_path, document([], []))))
    assert "_record_memory_history" in caught.value.hint


@pytest.mark.parametrize(("size", "taken"), [(0, 512), (1, 512), (512, 512), (513, 1024)])
def test_requests_are_rounded_as_the_allocator_does(size, taken):
    """To 512 bytes, and at least that."""
    assert rounded(size) == taken

"""What is resident, as requests that lay it as it lies."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.measure.resident_layout import (  # noqa: E402
    _gap,
    _joined,
    _of_segment,
    blocks_in_use,
    resident_layout,
)

MiB = 1 << 20


def test_a_gap_is_asked_for_in_pieces_of_its_own_pool():
    """Small ones of at most 1 MiB, large ones of more, and below 10 MiB."""
    for size in (512, MiB, 3 * MiB // 2, 2 * MiB):
        pieces = list(_gap(size, True))
        assert sum(pieces) == -size
        assert min(pieces) >= -MiB
    for size in (3 * MiB // 2, 8 * MiB, 9 * MiB - 512, 18 * MiB + 512, 100 * MiB):
        pieces = [-piece for piece in _gap(size, False)]
        assert sum(pieces) == size
        assert all(MiB < piece < 10 * MiB for piece in pieces)


def test_a_segment_with_nothing_kept_is_left_out():
    """And one with something has its blocks in order, free ones and others' as gaps."""
    blocks = [
        {"size": 4 * MiB, "state": "active_allocated"},
        {"size": 6 * MiB, "state": "inactive"},
        {"size": 5 * MiB, "state": "active_allocated"},
        {"size": 5 * MiB, "state": "active_allocated"},
    ]
    start = 1 << 30
    segment = {"address": start, "blocks": blocks}
    assert _of_segment(segment, set()) == []
    found = _of_segment(segment, {start, start + 15 * MiB})
    assert found[0] == 4 * MiB
    assert found[-1] == 5 * MiB
    assert sum(found[1:-1]) == -11 * MiB


def test_blocks_that_are_in_use(monkeypatch):
    """Of one device, by address."""
    states = ["active_allocated", "inactive", "active_allocated"]
    blocks = [{"size": 2 * MiB, "state": state} for state in states]
    rows = [
        {"device": number, "address": (number + 1) << 30, "blocks": blocks} for number in (0, 1)
    ]
    monkeypatch.setattr(torch.cuda.memory, "memory_snapshot", lambda: rows)
    assert blocks_in_use(torch.device("cuda", 1)) == {2 << 30, (2 << 30) + 4 * MiB}


def test_growing_segments_of_a_pool_are_one_with_gaps():
    """In the order of addresses; other pools, other streams and segments of one size are apart."""

    def segment(start, size, kind="large", **more):
        blocks = [{"size": size * MiB, "state": "active_allocated"}]
        found = {"address": start * MiB, "total_size": size * MiB, "blocks": blocks, "stream": 0}
        return found | {"segment_type": kind, "is_expandable": True} | more

    rows = [
        segment(0, 20), segment(40, 40), segment(100, 2, "small"), segment(120, 20, stream=1),
        segment(140, 20), segment(200, 20, is_expandable=False), segment(2**30, 20),
    ]  # fmt: skip
    first, small, other, plain, far = _joined(rows)
    kept = {block["address"] for block in rows}
    assert _of_segment(first, kept)[0] == 20 * MiB
    pieces = _of_segment(first, kept)
    assert [piece // MiB for piece in pieces if piece > 0] == [20, 40, 20]
    assert sum(pieces) == (80 - 20 - 60) * MiB
    assert [len(row["blocks"]) for row in (small, other, plain, far)] == [1] * 4
    assert len(rows[0]["blocks"]) == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_every_tensor_is_there_once():
    device = torch.device("cuda", torch.cuda.current_device())
    kept = [torch.empty(size, dtype=torch.uint8, device=device) for size in (700, 3 * MiB, 64)]
    found = resident_layout([kept, kept[0][:5]], device)
    assert sorted(size for segment in found for size in segment if size > 0) == [512, 1024, 3 * MiB]

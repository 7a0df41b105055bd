"""A way to spend less in words, and the table of several."""

from __future__ import annotations

from schedsim.validation.ways.way import Way, table


def test_a_way_is_named_by_what_is_done():
    """Chunks and micro-batches round otherwise; copies do not."""
    both = Way({"head": 4}, 2, True, "fits", step_s=1.5, peak_bytes=2_000_000)
    assert both.name == "head in 4 chunks, 2 micro-batches, offload"
    assert not both.same_bits
    plain = Way({}, 1, False, "chosen")
    assert plain.name == "recompute alone"
    assert plain.same_bits
    assert plain.to_dict()["step_s"] is None


def test_the_table_has_a_line_for_each():
    """With a dash where there is no plan, and the note behind the status."""
    lines = table(
        [
            Way({}, 1, False, "chosen", step_s=1.5, peak_bytes=2_000_000),
            Way({}, 2, False, "refused", note="it normalises over the batch"),
        ]
    )
    assert [line.split("  ")[0] for line in lines] == [
        "way to spend less",
        "recompute alone",
        "2 micro-batches",
    ]
    assert lines[1].endswith("same     chosen")
    assert lines[2].endswith("refused: it normalises over the batch")

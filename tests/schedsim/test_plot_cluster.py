"""``schedsim plot cluster``: what is drawn, and that it is written."""

import pytest

import schedsim
from schedsim.figures.plot_cluster import draw_cluster, stacked_kinds


@pytest.mark.slow
def test_bars_are_the_peaks():
    """Kinds of each rank add up to what is in use; a row for each stream."""
    found = schedsim.cluster(
        "llama3.2-1b", devices=4, pipeline=2, batch=2, seq=512, recompute="full"
    )
    stacked = stacked_kinds(found)
    totals = [sum(sizes[k] for sizes in stacked.values()) for k in range(2)]
    assert [round(total * 1e9) for total in totals] == [rank.peak_bytes for rank in found.ranks]
    left, right = draw_cluster(found).axes
    assert len(left.patches) == 2 * len(stacked)
    names = [text.get_text() for text in right.get_yticklabels()]
    assert names == list(found.time.timeline.stream_names)
    assert right.get_title() == found.time.timeline_of == "pipeline rank 1: one of 2 micro-batches"
    legend = [text.get_text() for text in right.get_legend().get_texts()]
    assert legend == ["forward", "recomputed", "backward", "message"]
    assert "memory of h100" in [text.get_text() for text in left.get_legend().get_texts()]

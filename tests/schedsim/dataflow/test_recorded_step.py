"""Records of requests by op."""

from __future__ import annotations

from schedsim.dataflow.recorded_step import SAVING, RecordedStep


def test_a_forward_that_saves_has_a_record_of_its_own():
    """Where there is one; and an op that was not recorded asks for nothing."""
    records = {"F0": (0, ~0), f"F0{SAVING}": (1, 2), "B0": (~2,)}
    step = RecordedStep((), (8, 8, 4), ("", "a1", "r1"), records)
    tables = step.tables

    def record(name, **how):
        row = step.row_of(name, **how)
        return tuple(tables.entries[tables.start[row] : tables.start[row + 1]])

    assert record("F0", saves=False) == (0, ~0)
    assert record("F0", saves=True) == (1, 2)
    assert record("B0", saves=True) == (~2,)
    assert record("loss", saves=False) == ()
    assert dict(step.held_blocks) == {"a1": [1], "r1": [2]}

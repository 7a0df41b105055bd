"""Records in arrays: every record, holder and key comes out again."""

from __future__ import annotations

from schedsim.dataflow.record_tables import NONE, RecordTables
from schedsim.dataflow.recorded_step import RecordedStep


def test_tables_hold_what_the_records_hold():
    """Row 0 is empty; a block without a tensor has none."""
    records = {"F0": (0, 1, ~0), "B0": (2, ~1)}
    step = RecordedStep(
        (), (8, 16, 4), ("", "a1", "g"), records, first_end=(2, ~2), later_end=(~2,)
    )
    tables = RecordTables.of(step)

    def row(number):
        return tuple(tables.entries[tables.start[number] : tables.start[number + 1]])

    assert row(0) == ()
    assert {key: row(number) for key, number in tables.rows.items()} == records
    assert [row(number) for number in tables.ends] == [(2, ~2), (~2,)]
    assert tables.block_bytes.tolist() == [8, 16, 4]
    number = tables.tensors
    assert tables.holder.tolist() == [NONE, number["a1"], number["g"]]
    held = {
        name: tables.held[tables.held_start[k] : tables.held_start[k + 1]].tolist()
        for name, k in number.items()
    }
    assert held == {"a1": [1], "g": [2]}

"""Recorded requests in workload files."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import schedsim
from schedsim import InvalidWorkloadError
from schedsim.allocators import allocate
from schedsim.dataflow.recorded_step import RecordedStep
from schedsim.files.document import from_dict, to_dict
from schedsim.files.workload_files import workload_hash

MiB = 1 << 20


def recorded():
    """The records of a chain of one stage; the end of the first step makes a state."""
    sizes = (3 * MiB, 5 * MiB, 4 * MiB, 2 * MiB, 7 * MiB)
    return RecordedStep(
        ((2 * MiB, -(18 * MiB)),),
        sizes,
        ("a1", "r1", "", "d1", ""),
        {"F0": (2, 0, ~2), "F0+": (0, 1), "loss": (3,), "B0": (2,)},
        first_records={"B0": (2,)},
        first_blocks={"d1": (2,)},
        first_end=(4,),
        later_end=(),
        allocator_options={"expandable_segments": True},
    )


def chain():
    """One stage with a record."""
    made = schedsim.Chain.from_arrays(
        "one", MiB, forward_s=[1], backward_s=[1], output_bytes=[3 * MiB], saved_bytes=[8 * MiB]
    )
    return replace(made, recorded=recorded())


@pytest.mark.parametrize("of", [chain, lambda: chain().graph])
def test_a_record_comes_back_as_it_was(of):
    """So that what is reserved is predicted of the file as of the captured step."""
    given = of()
    back = from_dict(json.loads(json.dumps(to_dict(given))))
    assert back.recorded == given.recorded
    assert (
        workload_hash(back) == workload_hash(given) == workload_hash(replace(back, recorded=None))
    )
    schedule = schedsim.Schedule.store_all(given)
    peaks = [
        allocate(schedsim.simulate(one, schedule), num_steps=3).peak_reserved_bytes
        for one in (given, back)
    ]
    assert peaks[0] == peaks[1]


@pytest.mark.parametrize(
    ("field", "value", "place"),
    [
        ("records", {"F0": [9]}, r"recorded.records.F0\[0\]"),
        ("records", {"F0": [True]}, r"recorded.records.F0\[0\]"),
        ("records", {"F0": 3}, "recorded.records.F0"),
        ("first_end", [~5], r"recorded.first_end\[0\]"),
        ("first_records", {"B0": [9]}, r"recorded.first_records.B0\[0\]"),
        ("first_blocks", {"d1": [~2]}, r"recorded.first_blocks.d1\[0\]"),
        ("holders", ["a1"], "holders"),
        ("block_bytes", [-1], "block_bytes"),
        ("resident_segments", [[2**60]], r"recorded.resident_segments\[0\]"),
        ("allocator_options", {"max_split": 1}, "recorded.allocator_options"),
        ("allocator_options", {"max_split_bytes": 1}, "recorded.allocator_options"),
        ("more", 1, "recorded.more"),
    ],
)
def test_a_wrong_field_is_named(field, value, place):
    document = to_dict(chain())
    document["recorded"][field] = value
    with pytest.raises(InvalidWorkloadError, match=place):
        from_dict(document)

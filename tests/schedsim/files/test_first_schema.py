"""Files that the first version of each schema wrote, kept as they were written."""

from __future__ import annotations

from pathlib import Path

import pytest

import schedsim

FOLDER = Path(__file__).parent / "first_schema"


@pytest.mark.parametrize("kind", ["chain", "graph"])
def test_old_files_load_and_replay(kind):
    """The plan belongs to the workload, by its hash, and takes what it says that it takes."""
    workload = schedsim.load(FOLDER / f"{kind}-1.json")
    plan = schedsim.load(FOLDER / ("plan-1.json" if kind == "chain" else "graph-plan-1.json"))
    assert workload.kind == kind
    assert (plan.makespan_s, plan.peak_bytes) == (16.0, 40)
    for replayed in (plan.simulate(workload), schedsim.simulate(workload, plan)):
        assert (replayed.makespan_s, replayed.peak_bytes) == (16.0, 40)
    again = schedsim.plan(workload, 40, effort=0.1)
    assert again.makespan_s == 16.0
    assert again.workload.content_hash == plan.workload.content_hash

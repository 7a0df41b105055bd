"""Single changes to a schedule: keep what it recomputes, recompute what it keeps."""

from __future__ import annotations

import numpy as np
import pytest
from chains import random_graph, random_schedule
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from schedsim import explain, simulate
from schedsim.analysis.edits import ScheduleEditor


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 10**6))
def test_changes_of_random_schedules_are_legal_and_priced(seed):
    """Every change replays, holds the first runs of all ops, and differs as it says."""
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, int(rng.integers(2, 12)))
    before = simulate(graph, random_schedule(rng, graph))
    explanation = explain(graph, before.schedule)
    for change in (*explanation.recompute, *explanation.keep):
        assert change.peak_bytes - change.peak_change_bytes == before.peak_bytes
        assert change.makespan_s - change.time_change_s == pytest.approx(before.makespan_s)
    assert all(change.peak_change_bytes < 0 for change in explanation.recompute)
    assert all(change.num_runs_change < 0 for change in explanation.keep)
    for number, tensor in enumerate(explanation.alive):
        busy = {*graph.ops[graph.op_index(before.peak_op)].reads}
        if tensor.name in busy or tensor.written_run < 0:
            continue
        changed = ScheduleEditor(graph, before.schedule).recompute_instead(
            [tensor.name], before.peak_run
        )
        if changed is not None:
            assert len(changed) > len(before.schedule), number
            at = simulate(graph, changed)
            instances = {live.name for live in at.live_tensors(before.peak_run)}
            written = {*graph.ops[graph.op_index(before.peak_op)].writes}
            assert tensor.name not in instances - written

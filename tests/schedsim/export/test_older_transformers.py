"""transformers before 5.23: the method by its earlier name."""

from __future__ import annotations

import schedsim
from schedsim import simulate
from schedsim.export import export
from schedsim.workloads import WorkloadOptions, build_workload

GPT2 = build_workload(WorkloadOptions(preset="gpt2", batch=8)).workload


def planned(workload, share: float):
    """The plan at a share of the way from the least memory to that of store-all."""
    peak = simulate(workload, schedsim.Schedule.store_all(workload)).peak_bytes
    little = min(point.budget_bytes for point in schedsim.pareto(workload).points)
    return schedsim.plan(workload, int(little + share * (peak - little)))


def test_the_earlier_method_gets_the_same_layers():
    """And is called with the checkpoints that do not re-enter autograd."""
    plan = planned(GPT2, 0.4)
    older, now = (export(GPT2, plan, "transformers", version=v) for v in ("4", "5.23"))
    assert 'gradient_checkpointing_kwargs={"use_reentrant": False}' in older.text
    assert "model.gradient_checkpointing_enable(" in older.text
    assert "gradient_checkpointing_enable" not in now.text
    chosen = [line for line in older.text.splitlines() if line.startswith("CHECKPOINTED")]
    assert chosen == [line for line in now.text.splitlines() if line.startswith("CHECKPOINTED")]
    assert older.schedule == now.schedule

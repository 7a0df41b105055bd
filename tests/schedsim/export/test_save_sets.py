"""Save sets over the op graph of a step."""

from __future__ import annotations

from schedsim import simulate
from schedsim.export.save_sets import find_layers, layer_schedule, on_demand_schedule
from schedsim.workloads import WorkloadOptions, build_workload

OPS = build_workload(WorkloadOptions(preset="gpt2", layers=4, batch=8, granularity="op")).workload


def test_save_sets_run_the_rest_again():
    """With everything saved nothing repeats; with nothing saved every needed op does, once."""
    layers = find_layers(OPS, "test")
    assert layers.names == ("layer0", "layer1", "layer2", "layer3")
    assert layers.kinds[:2] == ("attention.norm", "attention.qkv")
    none = simulate(OPS, layer_schedule(OPS, layers, [layers.kinds] * 4))
    assert none.num_recomputed == 0
    every = simulate(OPS, layer_schedule(OPS, layers, [()] * 4))
    two = simulate(OPS, layer_schedule(OPS, layers, [(), (), None, None]))
    assert every.num_recomputed == 2 * two.num_recomputed > 0
    assert every.peak_bytes < two.peak_bytes < none.peak_bytes
    forward = [i for i, op in enumerate(OPS.ops) if op.phase == "forward"]
    assert simulate(OPS, on_demand_schedule(OPS, forward)).num_recomputed == 0
    demanded = simulate(OPS, on_demand_schedule(OPS, ()))
    assert 0 < demanded.num_recomputed <= len(forward)

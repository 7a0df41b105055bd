"""The options of a formula workload, as on the command line, and the model they mean."""

from __future__ import annotations

from schedsim.pipelines.from_formula import (
    layer_state_bytes,
    model_record,
    roofline_of,
    weight_gradients,
)
from schedsim.workloads import WorkloadOptions, build_workload


def test_layers_share_the_state():
    """Layer by layer it is what the whole model has, but for rounding up."""
    options = WorkloadOptions(preset="gpt2", static="auto", tensor_parallel=2)
    whole = build_workload(options).workload.static_bytes
    each = layer_state_bytes(options)
    assert 0 <= sum(each) - whole < 64 * len(each)
    assert each[0] > each[1] == each[2]  # the embedding table


def test_weight_gradients_of_a_layer():
    """Qi et al. 2024, table 1: W of a layer takes 32 s b h: 14 kept of the bundle, 18 handed over.

    Its time is half of the matrix products': a third of the layer's whole, where those are all.
    """
    options = WorkloadOptions(layers=3)
    record = model_record(options)
    sbh = 2048 * 12288
    chain = build_workload(options).workload
    for part, layer in zip(
        weight_gradients(record, roofline_of(options)), chain.stages, strict=True
    ):
        assert part.kept_bytes == 14 * sbh
        assert part.gradient_bytes == 18 * sbh
        assert 0.25 * layer.backward_s < part.time_s < 0.5 * layer.backward_s
        assert part.kept_bytes <= layer.saved_bytes - layer.output_bytes


def test_selective_steps_run():
    """As a chain, as blocks and as a graph of ops, from the command line's options."""
    for granularity in ("layer", "block", "op"):
        options = {"layers": 2, "granularity": granularity}
        selective = build_workload(WorkloadOptions(attention="selective", **options)).workload
        eager = build_workload(WorkloadOptions(**options)).workload
        assert selective.store_all_s > eager.store_all_s

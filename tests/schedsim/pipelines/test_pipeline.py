"""Pipelines lowered and simulated: memory of each device, messages, collectives, refusals."""

from __future__ import annotations

import itertools

import pytest

from schedsim import Chain, simulate
from schedsim.errors import InvalidScheduleError, InvalidWorkloadError
from schedsim.pipelines import (
    Collectives,
    Pipeline,
    StagePlan,
    WeightGradient,
    keep_all,
    layer_inputs,
    make_order,
    make_pipeline,
    pipeline_schedule,
    run_pipeline,
    stage_input,
)
from schedsim.plans.links import Link


def equal(num_layers: int, *, output: int = 1, saved: int = 4) -> Chain:
    """Equal layers of 1 s forward and 2 s backward."""
    return Chain.from_arrays(
        "equal",
        output,
        forward_s=[1.0] * num_layers,
        backward_s=[2.0] * num_layers,
        output_bytes=[output] * num_layers,
        saved_bytes=[saved] * num_layers,
    )


def test_capacity_of_the_peak_changes_nothing():
    """A pipeline runs as well in exactly its peaks."""
    pipeline = make_pipeline(equal(8), 4, 8, link=Link(1e9, 0.25))
    run = run_pipeline(pipeline, make_order("1f1b", 4, 8), [layer_inputs(2)] * 4)
    capacities = {f"device:{use.device}": use.peak_bytes for use in run.devices}
    again = simulate(pipeline.graph, run.simulation.schedule, capacities)
    assert again.makespan_s == run.makespan_s


@pytest.mark.parametrize("num_devices", [2, 4])
def test_1f1b_holds_p_micro_batches(num_devices):
    """Korthikanti et al. 2022: the first stage holds p micro-batches, stage S max(0, p - S).

    Each more than the first adds what the stage saves of it, its input included: 2 layers of 4
    bytes and 1.
    """
    one = make_pipeline(equal(2 * num_devices), num_devices, 1)
    alone = run_pipeline(one, make_order("1f1b", num_devices, 1), [keep_all(2)] * num_devices)
    many = make_pipeline(equal(2 * num_devices), num_devices, 12)
    run = run_pipeline(many, make_order("1f1b", num_devices, 12), [keep_all(2)] * num_devices)
    for k in range(num_devices):
        # While a stage works for one micro-batch, the input of the next may wait for it.
        waits = 0 if k == 0 else 1
        more = run.devices[k].peak_bytes - alone.devices[k].peak_bytes
        assert more in ((num_devices - k - 1) * 9, (num_devices - k - 1) * 9 + waits)


def test_memory_of_gpipe():
    """O(N + L / K x N / M): with replays, one more micro-batch costs a stage its input alone."""
    peaks = {}
    for num_micro in (4, 5, 6):
        pipeline = make_pipeline(equal(16), 4, num_micro)
        plans = [stage_input(4)] * 4
        run = run_pipeline(pipeline, make_order("gpipe", 4, num_micro), plans)
        peaks[num_micro] = run.devices[1].peak_bytes
    # The input, 1 byte, of each micro-batch; the bundles of 4 layers of one; gradients and output.
    assert peaks[5] - peaks[4] == peaks[6] - peaks[5] == 1
    assert 16 + 4 <= peaks[4] <= 16 + 4 + 3
    kept = make_pipeline(equal(16), 4, 4)
    run = run_pipeline(kept, make_order("gpipe", 4, 4), [keep_all(4)] * 4)
    assert run.devices[1].peak_bytes >= 4 * 17


def test_messages_take_time_each_way():
    """Two devices, one micro-batch: forward, message, forward and backward, message, backward."""
    pipeline = make_pipeline(equal(2, output=6, saved=6), 2, 1, link=Link(12.0, 0.25))
    run = run_pipeline(pipeline, make_order("1f1b", 2, 1), [keep_all(1)] * 2)
    assert run.makespan_s == 1 + 0.75 + 3 + 0.75 + 2
    streams = {op.name: op.stream for op in pipeline.graph.ops}
    assert streams["send:a1.0"] == "link:0-1"
    assert streams["send:d1.0"] == "link:1-0"


def test_a_stages_output_may_be_freed():
    """Korthikanti et al. 2022, appendix B: an output fewer for each micro-batch in flight.

    At the peak one of the p = 4 in flight runs forward, and its output is still there.
    """
    peaks = []
    for free in (False, True):
        pipeline = make_pipeline(equal(4, output=3, saved=10), 4, 8, free_outputs=free)
        run = run_pipeline(pipeline, make_order("1f1b", 4, 8), [keep_all(1)] * 4)
        peaks.append(run.devices[0].peak_bytes)
    assert peaks[0] - peaks[1] == 3 * 3


def test_micro_batches_may_differ():
    """Appendix C: of 4 in flight on the first stage, those in a window keep all."""
    pipeline = make_pipeline(equal(8), 4, 12)
    order = make_order("1f1b", 4, 12)
    held = []
    for window in range(5):
        first = [keep_all(2)] * window + [stage_input(2)] * (4 - window)
        run = run_pipeline(pipeline, order, [first, *[keep_all(2)] * 3])
        held.append((run.devices[0].recompute_s, run.devices[0].peak_bytes))
    # Of 12 micro-batches, 12 - 3 * window are replayed, 2 s each.
    assert [seconds for seconds, _ in held] == [24 - 6 * window for window in range(5)]
    # Each one more in the window holds 2 bundles of 4 bytes. With all but one in it, that one's
    # replay takes as much while it runs; the others hold as much as with none replayed.
    assert [b - a for (_, a), (_, b) in itertools.pairwise(held)] == [8, 8, 8, 0]


def test_recomputation_overlaps_collectives():
    """While a layer's gradient is reduced, the compute stream replays the layer before it.

    Two layers, each replayed: F0 c F1 c [loss] F1 B1 | F0 runs while B1's collective does | B0. The
    first replay needs nothing but a1, which is there before the collective of F1 ends.
    """
    chain = equal(2)
    plain = make_pipeline(chain, 1, 1)
    order, plans = make_order("1f1b", 1, 1), [layer_inputs(2)]
    assert run_pipeline(plain, order, plans).makespan_s == 1 + 1 + 1 + 2 + 1 + 2
    slow = make_pipeline(chain, 1, 1, collectives=[Collectives(0.5, 1.0)] * 2)
    run = run_pipeline(slow, order, plans)
    # F0 1, c .5, F1 1; F1 again needs a1 alone and overlaps c; loss needs what that replay reduces.
    assert run.makespan_s == 1 + 0.5 + 1 + 1 + 0.5 + 2 + 1 + 2
    late = [keep_all(2)]
    assert run_pipeline(slow, order, late).makespan_s == 1 + 0.5 + 1 + 0.5 + 2 + 1 + 2
    # Keeping all saves 2 s of replays where nothing is reduced, and 1 s here: the rest is hidden.


def test_split_backward_hands_over():
    """B frees what W does not read; W reads what it keeps and what B hands over."""
    parts = [WeightGradient(time_s=1.0, kept_bytes=2, gradient_bytes=5)] * 2
    pipeline = make_pipeline(equal(2), 2, 2, split_backward=True, weight_gradients=parts)
    ops = {op.name: op for op in pipeline.graph.ops}
    assert ops["B1.0"].time_s == ops["W1.0"].time_s == 1.0
    assert ops["W1.0"].reads == ("q2.0", "w2.0")
    assert dict(ops["F1.0"].writes) == {"a2.0": 1, "r2.0": 1, "q2.0": 2}
    assert dict(ops["B1.0"].writes) == {"d1.0": 1, "w2.0": 5}


def test_refusals_of_pipelines():
    """Fields are named with what is wrong."""
    chain = equal(4)
    for cuts, devices, place in (
        ((0, 2, 3), 2, "cuts"),
        ((0, 3, 2, 4), 3, "cuts"),
        ((0, 1, 2, 4), 2, "cuts"),
        ((0, 4), 0, "num_devices"),
    ):
        with pytest.raises(InvalidWorkloadError) as error:
            Pipeline(chain, cuts, devices, 1)
        assert error.value.path == place
    with pytest.raises(InvalidWorkloadError, match="layer_static_bytes: 2 entries for 4 layers"):
        Pipeline(chain, (0, 4), 1, 1, layer_static_bytes=(1, 1))
    with pytest.raises(InvalidWorkloadError, match="exceeds the layer's backward_s"):
        Pipeline(
            chain,
            (0, 4),
            1,
            1,
            split_backward=True,
            weight_gradients=[WeightGradient(3.0, 0, 0)] * 4,
        )


def test_orders_that_cannot_run():
    """An order that waits for ever, or lacks an action, is refused and named."""
    pipeline = make_pipeline(equal(2), 2, 1)
    forward, backward = make_order("1f1b", 2, 1)[1]
    first = make_order("1f1b", 2, 1)[0]
    with pytest.raises(InvalidScheduleError, match=r"B1\.0|B1 reads|reads what"):
        pipeline_schedule(pipeline, (first, (backward, forward)), [keep_all(1)] * 2)
    with pytest.raises(InvalidScheduleError, match="waits for a message"):
        pipeline_schedule(pipeline, (first, (forward,)), [keep_all(1)] * 2)
    with pytest.raises(InvalidScheduleError, match="no backward of"):
        StagePlan(("B0", "B1"))

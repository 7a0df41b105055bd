"""A pipeline simulated: what each device holds, does and waits for, by hand."""

from __future__ import annotations

import json

import pytest

from schedsim import Chain
from schedsim.pipelines import (
    keep_all,
    layer_inputs,
    make_order,
    make_pipeline,
    run_pipeline,
    stage_input,
)


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


def test_each_device_by_hand():
    """Two stages of 1 and 2 layers, 2 micro-batches, the second stage replayed from its input.

    Device 0 computes 2 x 3 s. Device 1 computes 2 x (2 + 4) s and 2 x 2 s again. In 1F1B without
    time for messages the second device is never idle after the first second: 1 + 16 + 2 for the
    last backward of stage 0.
    """
    pipeline = make_pipeline(equal(3), 2, 2, cuts=(0, 1, 3))
    run = run_pipeline(pipeline, make_order("1f1b", 2, 2), [keep_all(1), stage_input(2)])
    assert run.makespan_s == 1 + 16 + 2
    first, second = run.devices
    assert (first.num_layers, second.num_layers) == (1, 2)
    assert (first.busy_s, first.recompute_s) == (6.0, 0.0)
    assert (second.busy_s, second.recompute_s) == (16.0, 4.0)
    assert first.bubble == pytest.approx(1 - 6 / 19)
    assert second.bubble == pytest.approx(1 - 16 / 19)
    assert run.bubble == pytest.approx(1 - 22 / 38)
    # Ideal: 18 s of work over two devices.
    assert run.overhead == pytest.approx(19 / 9 - 1)
    assert run.peak_bytes == max(first.peak_bytes, second.peak_bytes)


def test_several_stages_a_device():
    """Interleaved: stages 0 and 2 are on device 0, and their layers are counted together."""
    pipeline = make_pipeline(equal(6), 2, 4, num_chunks=2, cuts=(0, 1, 3, 5, 6))
    plans = [keep_all(1), keep_all(2), keep_all(2), keep_all(1)]
    run = run_pipeline(pipeline, make_order("interleaved", 2, 4, 2), plans)
    assert [use.num_layers for use in run.devices] == [3, 3]
    assert [use.busy_s for use in run.devices] == [4 * 9.0, 4 * 9.0]


def test_static_bytes_are_those_of_each_device():
    """State by layer: the first device has three layers of 10 bytes, the second one of 100."""
    pipeline = make_pipeline(equal(4), 2, 1, cuts=(0, 3, 4), layer_static_bytes=(10, 10, 10, 100))
    run = run_pipeline(pipeline, make_order("1f1b", 2, 1), [keep_all(3), keep_all(1)])
    assert [use.static_bytes for use in run.devices] == [30, 100]
    assert all(use.peak_bytes > use.static_bytes for use in run.devices)


def test_a_pipeline_that_takes_no_time():
    """Nothing is divided by zero: no bubble, no overhead."""
    chain = Chain.from_arrays(
        "still", 1, forward_s=[0, 0], backward_s=[0, 0], output_bytes=[1, 1], saved_bytes=[1, 1]
    )
    run = run_pipeline(make_pipeline(chain, 2, 2), make_order("1f1b", 2, 2), [keep_all(1)] * 2)
    assert (run.makespan_s, run.overhead, run.bubble) == (0.0, 0.0, 0.0)


def test_the_document_has_the_numbers_of_the_run():
    """Plain numbers: it is JSON as it stands; the text says the essentials."""
    pipeline = make_pipeline(equal(4), 2, 3)
    run = run_pipeline(pipeline, make_order("gpipe", 2, 3), [layer_inputs(2)] * 2)
    document = json.loads(json.dumps(run.to_dict()))
    assert document["makespan_s"] == run.makespan_s
    assert document["ideal_s"] == 3 * 4 * 3 / 2
    assert document["num_runs"] == run.simulation.num_runs
    assert [device["recompute_s"] for device in document["devices"]] == [6.0, 6.0]
    assert document["peak_bytes"] == max(device["peak_bytes"] for device in document["devices"])
    lines = str(run).splitlines()
    assert lines[0] == "equal: 3 micro-batches over 2 devices"
    assert f"bubble {run.bubble:.1%}" in lines[1]

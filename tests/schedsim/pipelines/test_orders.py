"""Orders of pipelines: what is in flight, and how long equal stages take."""

from __future__ import annotations

import pytest

from schedsim import Chain
from schedsim.errors import InvalidWorkloadError, SchedsimError
from schedsim.pipelines import (
    even_cuts,
    keep_all,
    make_order,
    make_pipeline,
    most_in_flight,
    run_pipeline,
    stage_input,
)


def equal(num_layers: int, *, forward_s: float = 1.0, backward_s: float = 2.0) -> Chain:
    """Equal layers, 1 byte out and 4 saved."""
    return Chain.from_arrays(
        "equal",
        1,
        forward_s=[forward_s] * num_layers,
        backward_s=[backward_s] * num_layers,
        output_bytes=[1] * num_layers,
        saved_bytes=[4] * num_layers,
    )


@pytest.mark.parametrize("order", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("num_devices", "num_micro"), [(1, 1), (2, 1), (4, 8), (4, 3), (5, 32)])
def test_the_bubble_of_equal_stages(order, num_devices, num_micro):
    """Huang et al. 2019: (K - 1) / (M + K - 1), exactly, and so for 1F1B."""
    pipeline = make_pipeline(equal(num_devices), num_devices, num_micro)
    actions = make_order(order, num_devices, num_micro)
    run = run_pipeline(pipeline, actions, [keep_all(1)] * num_devices)
    assert run.makespan_s == 3 * (num_micro + num_devices - 1)
    for use in run.devices:
        assert use.bubble == 1 - num_micro / (num_micro + num_devices - 1)
    assert run.bubble == pytest.approx((num_devices - 1) / (num_micro + num_devices - 1))


@pytest.mark.parametrize("num_devices", [2, 4, 8])
def test_recomputation_hides_in_the_wait(num_devices):
    """GPipe with one micro-batch: f + b + f / K, the last stage's replay alone in sight.

    With f = 1 and b = 2 that is 3.5, 3.25 and 3.125 for K = 2, 4, 8: K = 4 is 1.077 times as fast
    as K = 2, the paper's 1.07.
    """
    pipeline = make_pipeline(equal(8, forward_s=0.125, backward_s=0.25), num_devices, 1)
    actions = make_order("gpipe", num_devices, 1)
    plans = [stage_input(8 // num_devices)] * num_devices
    assert run_pipeline(pipeline, actions, plans).makespan_s == 3 + 1 / num_devices


def test_the_paper_of_gpipe():
    """Table 2, Transformer, M = 1: from K = 2 to K = 4, 1.07."""
    times = {}
    for num in (2, 4):
        pipeline = make_pipeline(equal(8), num, 1)
        run = run_pipeline(pipeline, make_order("gpipe", num, 1), [stage_input(8 // num)] * num)
        times[num] = run.makespan_s
    assert times[2] / times[4] == 3.5 / 3.25
    assert round(times[2] / times[4] - 0.005, 2) == 1.07


def test_late_recomputation_waits():
    """Where the backward itself calls it, every stage's replay is in sight: f + b + f."""
    pipeline = make_pipeline(equal(8), 4, 1, waits_for_gradient=True)
    run = run_pipeline(pipeline, make_order("gpipe", 4, 1), [stage_input(2)] * 4)
    assert run.makespan_s == 8 * (1 + 2 + 1)


@pytest.mark.parametrize(
    ("num_devices", "num_micro", "num_chunks"), [(2, 2, 2), (4, 8, 2), (4, 8, 3)]
)
def test_interleaving_divides_the_bubble(num_devices, num_micro, num_chunks):
    """Narayanan et al. 2021: (M + (K - 1) / m) times the work of a device."""
    layers = num_devices * num_chunks
    pipeline = make_pipeline(equal(layers), num_devices, num_micro, num_chunks=num_chunks)
    order = make_order("interleaved", num_devices, num_micro, num_chunks)
    run = run_pipeline(pipeline, order, [keep_all(1)] * layers)
    assert run.makespan_s == 3 * num_chunks * num_micro + 3 * (num_devices - 1)


@pytest.mark.parametrize(("num_devices", "num_micro"), [(2, 4), (4, 8), (4, 16), (8, 16)])
def test_zero_bubble(num_devices, num_micro):
    """ZB-H1 with F = B = W: a bubble of (K - 1) (F + B - W), a third of that of 1F1B."""
    pipeline = make_pipeline(equal(num_devices), num_devices, num_micro, split_backward=True)
    order = make_order("zero-bubble", num_devices, num_micro)
    run = run_pipeline(pipeline, order, [keep_all(1)] * num_devices)
    assert run.makespan_s == 3 * num_micro + num_devices - 1


@pytest.mark.parametrize("num_micro", [1, 2, 4, 9])
def test_in_flight_of_1f1b(num_micro):
    """Stage k of K holds K - k micro-batches, or all there are."""
    found = most_in_flight(make_order("1f1b", 4, num_micro))
    assert [max(count[k] for count in found[k]) for k in range(4)] == [
        min(4 - k, num_micro) for k in range(4)
    ]


@pytest.mark.parametrize(("num_devices", "num_chunks"), [(2, 2), (4, 2), (4, 3), (8, 3)])
def test_in_flight_of_interleaved(num_devices, num_chunks):
    """The first device holds K m + K - 1 stages' worth: 1 + (K - 1) / (K m) times K m."""
    found = most_in_flight(make_order("interleaved", num_devices, 4 * num_devices, num_chunks))
    stages = num_devices * num_chunks
    assert max(sum(count.values()) for count in found[0]) == stages + num_devices - 1


@pytest.mark.parametrize("num_devices", [2, 4])
def test_in_flight_of_zero_bubble(num_devices):
    """No device holds more than the first: K."""
    found = most_in_flight(make_order("zero-bubble", num_devices, 12))
    assert {max(count[k] for count in found[k]) for k in range(num_devices)} == {num_devices}


def test_every_action_once():
    """Each order runs every stage of every micro-batch once forward and once backward."""
    for name, chunks in (("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zero-bubble", 1)):
        order = make_order(name, 3, 6, chunks)
        kinds = "FBW" if name == "zero-bubble" else "FB"
        actions = [action for device in order for action in device]
        assert len(set(actions)) == len(actions) == 3 * chunks * 6 * len(kinds)
        assert all(action.stage % 3 == k for k, device in enumerate(order) for action in device)


def test_refusals():
    """What an order does not go with is said with the remedy."""
    with pytest.raises(SchedsimError, match="multiple of 4 devices") as error:
        make_order("interleaved", 4, 6, 2)
    assert error.value.hint
    with pytest.raises(SchedsimError, match="'2f2b' is unknown"):
        make_order("2f2b", 4, 6)
    with pytest.raises(SchedsimError, match="one stage per device"):
        make_order("1f1b", 4, 8, 2)
    with pytest.raises(InvalidWorkloadError, match="3 layers cannot be split into 4"):
        even_cuts(3, 4)

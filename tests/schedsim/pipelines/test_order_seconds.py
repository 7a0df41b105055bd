"""An order played without memory takes as long as its simulation; the closed form no longer."""

import random

import pytest

from schedsim.dataflow.chain import Chain, Stage
from schedsim.pipelines import keep_all, make_order, make_pipeline, run_pipeline
from schedsim.pipelines.order_arrays import order_arrays
from schedsim.pipelines.order_seconds import least_makespan, order_makespan
from schedsim.plans.links import Link


def cases():
    """Random stages on two to five devices, with quick and with slow messages."""
    rng = random.Random(0)
    for _ in range(40):
        devices, chunks = rng.choice([2, 3, 5]), rng.choice([1, 1, 2, 3])
        plain = rng.choice(["gpipe", "1f1b", "zero-bubble"])
        schedule = "interleaved" if chunks > 1 else plain
        count = devices * rng.choice([1, 2, 3]) if chunks > 1 else rng.randint(devices, 9)
        num = devices * chunks
        forward = [rng.uniform(0.1, 1.0) for _ in range(num)]
        backward = [rng.uniform(0.1, 3.0) for _ in range(num)]
        yield (schedule, devices, count, chunks), forward, backward, rng.choice([0.001, 0.1, 1.0])


@pytest.mark.parametrize(("which", "forward", "backward", "message_s"), list(cases()))
def test_as_long_as_simulated(which, forward, backward, message_s):
    """In every order, and with messages that wait for one another."""
    schedule, devices, count, chunks = which
    layers = zip(forward, backward, strict=True)
    chain = Chain("any", 1, tuple(Stage(f"s{k}", f, b, 1, 1) for k, (f, b) in enumerate(layers)))
    pipeline = make_pipeline(
        chain,
        devices,
        count,
        num_chunks=chunks,
        link=Link(1e12, message_s),
        split_backward=schedule == "zero-bubble",
    )
    run = run_pipeline(pipeline, make_order(*which), [keep_all(1)] * len(forward))
    order = order_arrays(*which)
    link_s = pipeline.message_s(1)
    found = order_makespan(order, forward, backward, link_s)
    assert found == pytest.approx(run.makespan_s, rel=1e-12)
    least = least_makespan(schedule, devices, count, forward, backward, link_s)
    assert 0.5 * found < least <= found * (1 + 1e-12)


def test_delayed_gradients_of_weights_fill_the_end():
    """ZB-H1's bubble is (K - 1) (F + B - W), and 1F1B's (K - 1) (F + B + W)."""
    stages = [1.0] * 4, [2.0] * 4
    assert least_makespan("1f1b", 4, 8, *stages) == 8 * 3 + 3 * 3
    assert least_makespan("zero-bubble", 4, 8, *stages) == 8 * 3 + 3 * 1
    assert order_makespan(order_arrays("zero-bubble", 4, 8, 1), *stages) == 8 * 3 + 3 * 1

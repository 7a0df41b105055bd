"""Times of a step, against sums and the bubble of a pipeline."""

import pytest

from schedsim.clusters import Degrees, Training, get_architecture, get_fabric, step_time

FABRIC = get_fabric("h100-96gb")


def test_the_bubble_of_1f1b():
    """(p - 1) / (m + p - 1) of equal stages; four layers a stage make the ends matter little."""
    model = get_architecture("llama3-70b")
    found = step_time(
        model,
        Degrees(tensor=8, pipeline=8),
        Training(batch=8, num_micro_batches=8, recompute="full", compiled=True),
        FABRIC,
    )
    assert found.bubble == pytest.approx(7 / 15, abs=0.03)


def test_interleaved_stages_wait_less():
    """(p - 1) / (v m + p - 1) with v chunks."""
    model, degrees = get_architecture("llama3-70b"), Degrees(tensor=8, pipeline=8)
    training = {"batch": 8, "num_micro_batches": 8, "recompute": "full", "compiled": True}
    one = step_time(model, degrees, Training(**training), FABRIC)
    two = step_time(
        model, degrees, Training(schedule="interleaved", num_chunks=2, **training), FABRIC
    )
    assert two.bubble == pytest.approx(7 / 23, abs=0.04)
    assert two.step_s < one.step_s


@pytest.mark.slow
def test_further_micro_batches_take_as_long_as_the_last():
    """Those that are not played are added."""
    model, degrees = get_architecture("llama3.2-1b"), Degrees(fsdp=8)
    times = [
        step_time(model, degrees, Training(seq=1024, batch=n, num_micro_batches=n), FABRIC).step_s
        for n in (3, 4, 5)
    ]
    assert times[2] - times[1] == pytest.approx(times[1] - times[0])


@pytest.mark.parametrize(
    ("settings", "published"),
    [({}, 5762), ({"compiled": True}, 6667), ({"compiled": True, "float8": True}, 8532)],
)
def test_published_throughput_of_llama3_8b(settings, published):
    """torchtitan's table 1, within 15 percent after one efficiency of the device."""
    training = Training(batch=2, recompute="selective", **settings)
    found = step_time(get_architecture("llama3-8b"), Degrees(fsdp=8), training, FABRIC)
    assert 2 * 8192 / found.step_s == pytest.approx(published, rel=0.15)


def test_messages_run_beside_what_computes():
    """A step takes less than all of its streams one after another."""
    found = step_time(
        get_architecture("llama3-8b"), Degrees(fsdp=8), Training(recompute="full"), FABRIC
    )
    assert found.compute_s < found.step_s < sum(found.timeline.busy_s.values())

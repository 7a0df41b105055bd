"""The step time of a pipeline in one pass over its actions, against the engine on single ops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from chains import random_chain
from listed_plans import plans
from schedsim.algorithms.pipelines._makespan import StageTimes, StageWork, _makespan, weight_times

from schedsim.errors import InvalidScheduleError
from schedsim.kernels.compiled import in_python
from schedsim.pipelines import StagePlan, make_order, make_pipeline, run_pipeline
from schedsim.plans.links import Link
from schedsim.workloads.synthetic import uniform


@pytest.mark.parametrize("seed", range(12))
def test_one_pass_gives_what_the_engine_gives(seed):
    """All orders, with and without links, split backwards and waiting for the gradient.

    Stages keep everything, so that nothing but forwards, backwards and weights takes time.
    """
    rng = np.random.default_rng(seed)
    order = ("1f1b", "gpipe", "zero-bubble", "interleaved")[seed % 4]
    chunks, split = 2 if order == "interleaved" else 1, order == "zero-bubble"
    chain = replace(random_chain(rng, 7), loss_s=0.5)
    pipeline = make_pipeline(
        chain,
        3,
        6,
        num_chunks=chunks,
        split_backward=split,
        link=Link(8.0, 0.25) if seed % 3 else None,
        waits_for_gradient=bool(seed % 2),
    )
    actions = make_order(order, 3, 6, chunks)
    stages = range(pipeline.num_stages)
    keep = [StagePlan(plans(0, len(pipeline.stage_layers(v)))[0]) for v in stages]
    run = run_pipeline(pipeline, actions, keep)
    forward = [sum(chain.stages[i].forward_s for i in pipeline.stage_layers(v)) for v in stages]
    backward = [sum(chain.stages[i].backward_s for i in pipeline.stage_layers(v)) for v in stages]
    weights = weight_times(pipeline)
    assert weights.sum() == (sum(backward) / 2 if split else 0)
    late = [
        [b - w + chain.loss_s * (v == stages[-1])]
        for v, b, w in zip(stages, backward, weights, strict=True)
    ]
    times = StageTimes(pipeline, actions)
    found = times.makespan_s(
        forward, [[0.0]] * len(stages), late, weights, times.message_times(pipeline)
    )
    assert found == pytest.approx(run.makespan_s)


def pass_over(rows, work: StageWork, *, devices=2, links=1, messages=None, waits=False) -> float:
    """`_makespan` of (code, device, stage, micro-batch, source, link) rows."""
    table = np.array([(*row, 0) for row in rows], dtype=np.int64)
    message_s = np.zeros(len(rows)) if messages is None else np.array(messages, float)
    return in_python(_makespan)(table, message_s, links, devices, work, waits)


def work_of(forward, early, late, weights) -> StageWork:
    num_plans = np.array([len(row) for row in late])
    tables = (np.array(early, dtype=float), np.array(late, dtype=float))
    return StageWork(np.array(forward, float), np.array(weights, float), *tables, num_plans)


def test_what_waits_for_a_message_and_what_does_not():
    """A forward of 2 s, a message of 5 s, and a backward of 1 s early and 4 s late work.

    The early part runs while the message is under way, unless the backward waits for it.
    """
    work = work_of([2.0, 0.0], [[0.0], [1.0]], [[0.0], [4.0]], [0.0, 0.0])
    rows = [(0, 0, 0, 0, -1, -1), (1, 1, 1, 0, 0, 0)]
    assert pass_over(rows, work, messages=[0, 5]) == 2 + 5 + 4
    assert pass_over(rows, work, messages=[0, 5], waits=True) == 2 + 5 + 1 + 4


def test_messages_share_a_link():
    """Two that are sent at once come one after the other."""
    work = work_of([1.0, 1.0], [[0.0]] * 2, [[0.0]] * 2, [0.0, 0.0])
    rows = [(0, 0, 0, 0, -1, -1), (0, 1, 1, 0, 0, 0), (0, 1, 1, 1, 0, 0)]
    assert pass_over(rows, work, messages=[0, 3, 3]) == 1 + 3 + 3 + 1


def test_micro_batches_take_the_plans_in_turn():
    """With two plans, the third micro-batch has the first plan; weights come last."""
    work = work_of([0.0], [[0.0, 0.0]], [[1.0, 10.0]], [0.5])
    rows = [(1, 0, 0, j, -1, -1) for j in range(3)] + [(2, 0, 0, 0, -1, -1)]
    assert pass_over(rows, work, devices=1) == 1 + 10 + 1 + 0.5


def test_devices_that_wait_for_each_other_are_refused():
    """The message names the device and the action, and why."""
    first, second = make_order("1f1b", 2, 2)
    forward = [action for action in first if action.kind == "F"]
    backward = [action for action in first if action.kind == "B"]
    one_by_one = (forward[0], backward[0], forward[1], backward[1])
    with pytest.raises(InvalidScheduleError, match="device 0 waits for ever before") as caught:
        StageTimes(make_pipeline(uniform(2), 2, 2), (one_by_one, (second[2], *second[:2])))
    assert "waits for this one" in caught.value.hint


def test_given_times_of_weight_gradients_are_used():
    """Else they are half of the backward; without a split backward there are none."""
    pipeline = make_pipeline(uniform(4), 2, 2, split_backward=True)
    half = sum(pipeline.chain.stages[i].backward_s for i in (0, 1)) / 2
    assert weight_times(pipeline).tolist() == pytest.approx([half, half])
    assert weight_times(replace(pipeline, split_backward=False)).tolist() == [0, 0]

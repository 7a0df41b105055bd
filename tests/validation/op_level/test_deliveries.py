"""Gradients that leave a backward half early: which, when, and that nothing keeps them."""

from __future__ import annotations

import copy
import weakref

import numpy as np
import pytest
import torch
from chains import random_schedule
from schedsim.validation.capture import capture
from schedsim.validation.capture.program import refs
from schedsim.validation.capture.to_graph import op_calls
from schedsim.validation.op_level import scheduled_ops
from schedsim.validation.op_level.deliveries import deliveries
from step_models import make_step

NAMES = ("mlp", "gpt", "resnet")


def planned(name, seed):
    """A captured step, a schedule of it, the call of each run, and the run of the seed."""
    model, inputs, loss = make_step(name)
    captured = capture(model, inputs, loss)
    schedule = random_schedule(np.random.default_rng(seed), captured.graph)
    ops = op_calls(captured.program)
    calls = [ops[int(run)] for run in schedule.bind(captured.graph)]
    return captured, schedule, inputs, calls, calls.index(captured.program.seed)


def touched(program, call):
    """The storages that `call` reads or writes."""
    values = [*refs((call.args, call.kwargs)), *(v for v in call.outputs if v >= 0)]
    return {program.values[v].storage for v in values}


@pytest.mark.parametrize("least_bytes", [0, 2000, 10**9])
@pytest.mark.parametrize("name", NAMES)
def test_each_is_given_once_when_all_later_runs_leave_it_alone(name, least_bytes):
    """And with at least so many bytes, as soon as these are together."""
    captured, _, _, calls, split = planned(name, 0)
    program = captured.program
    found = deliveries(program, calls, split, least_bytes)
    names, values = list(program.gradients), list(program.gradients.values())
    assert sorted(p for one in found for p in one.gradients) == list(range(len(names)))
    assert [one.after for one in found] == sorted({one.after for one in found})
    assert found[-1].after == len(calls) - 1
    for one in found[:-1]:
        mine = {program.values[values[p]].storage for p in one.gradients}
        mine |= {program.values[program.parameters[names[p]]].storage for p in one.gradients}
        later = [touched(program, program.calls[i]) for i in calls[one.after + 1 :]]
        assert not any(mine & row for row in later)
        assert mine & touched(program, program.calls[calls[one.after]])
        sizes = [program.values[values[p]] for p in one.gradients]
        total = sum(v.dtype.itemsize * int(np.prod(v.shape)) for v in sizes)
        assert total >= least_bytes
    assert (len(found) == 1) == (least_bytes == 10**9)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_in_pieces_is_the_plain_one_and_holds_no_gradient_that_it_gave(name, monkeypatch):
    """Gradients are the model's to the bit; who takes one away is its last holder."""
    monkeypatch.setattr(scheduled_ops, "bucket_bytes", lambda: 1)
    captured, schedule, inputs, _, _ = planned(name, 1)
    module, plain = captured.module(schedule), copy.deepcopy(captured.model)
    torch.manual_seed(3)
    captured.loss(plain(inputs[0]), inputs[1]).backward()
    torch.manual_seed(3)
    loss = module(*inputs)
    assert len(module._code().deliveries) > 2
    taken, gone, runs = {}, [], []

    def take(parameter):
        gone.extend(one() is None for one in taken.values())
        taken[parameter] = weakref.ref(parameter.grad)
        runs.append(sum(module.run_counts.values()))
        found[parameter] = parameter.grad.numpy().copy()
        parameter.grad = None

    found = {}
    for parameter in module.model.parameters():
        parameter.register_post_accumulate_grad_hook(take)
    loss.backward()
    assert all(gone)
    assert len(set(runs)) > 2
    for mine, its in zip(module.model.parameters(), plain.parameters(), strict=True):
        assert np.array_equal(found[mine], its.grad.numpy())

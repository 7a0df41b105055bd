"""Records of a step from the stretches between its marks."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.parts.output_uses import Result, results_of  # noqa: E402
from schedsim.validation.drop_in.records.outside_code import OutsideBytes  # noqa: E402
from schedsim.validation.drop_in.records.step_calls import PartCall, StepCalls  # noqa: E402
from schedsim.validation.drop_in.records.step_meter import APART, BACK, StepMeter, net_bytes  # noqa: E402
from schedsim.validation.drop_in.records.step_record import NOTHING  # noqa: E402


class Told:
    """A meter that tells stretches of 1, 2, 3, ... bytes."""

    def __init__(self, lost=0):
        self.num_marks, self.lost = 0, lost

    def start(self):
        pass

    def mark(self, watched):
        self.num_marks += 1

    def stop(self):
        count = self.num_marks + 1 - self.lost
        return [OutsideBytes(i, i, net_most=i, net_left=i) for i in range(1, count + 1)]


def called(key, device="cpu"):
    part = SimpleNamespace(device=device, outputs=SimpleNamespace(unread=lambda: frozenset({0})))
    return PartCall(key, part, (), 0, 0, 0, is_done=True)


HALVES = ("forward", "after forward", "backward", "after backward")


def run(meter, calls, order):
    for half in order:
        number, names = (half, HALVES[:2]) if half >= 0 else (~half, HALVES[2:])
        for name in names:
            meter.mark(name, number)
        calls.order.append(half)


def test_what_ran_after_each_half_is_recorded_in_the_order_of_calls():
    meter, calls = StepMeter(Told()), StepCalls([called((0, 0)), called((1, 0))])
    run(meter, calls, (0, 1, -2, -1))
    stretches = meter.stop()
    record = meter.record(stretches, calls, NOTHING, 7)
    # 1 is before the first mark, then a half and the code after it in turn.
    assert [it.most for it in record.after_forward] == [3, 7]  # 7 results of the step before pass
    assert [it.most for it in record.after_backward] == [9, 7]
    assert record.order == (0, 1, -2, -1)
    assert record.passing_bytes == 7


def test_in_another_order_nothing_passes():
    meter, calls = StepMeter(Told()), StepCalls([called((0, 0)), called((0, 1))])
    run(meter, calls, (0, 1, -1, -2))
    assert meter.record(meter.stop(), calls, NOTHING, 7).passing_bytes == 0


def test_a_forward_without_a_backward_keeps_to_the_end():
    """As if its backward came last."""
    meter = StepMeter(Told())
    calls = StepCalls([replace(called((0, 0)), is_done=False), called((0, 1))])
    run(meter, calls, (0, 1, -2))
    record = meter.record(meter.stop(), calls, NOTHING, 0)
    assert record.order == calls.halves == (0, 1, -2, -1)
    assert [it.most for it in record.after_backward] == [0, 7]


def test_a_record_that_another_has_ended_tells_nothing():
    meter, calls = StepMeter(Told(lost=1)), StepCalls([called((0, 0))])
    run(meter, calls, (0, -1))
    assert meter.stop() is None


def test_a_backward_of_an_earlier_step_spoils_the_record():
    meter, calls = StepMeter(Told()), StepCalls([called((0, 0))])
    run(meter, calls, (0, -1))
    meter.mark("after backward", -1)
    assert meter.record(meter.stop(), calls, NOTHING, 0) is None


def test_what_the_code_before_the_first_part_leaves():
    """What the part reads is its input; on a device all of it is resident anyway."""
    meter = StepMeter(Told())
    first = OutsideBytes(50, 30)
    assert meter.front(first, 10, is_resident=False)[:2] == (50, 20)
    assert meter.front(first, 40, is_resident=False)[:2] == (50, 0)
    assert meter.front(first, 10, is_resident=True)[:2] == (50, 0)


def test_results_of_the_step_before_whose_release_is_told_in_part_are_added_in_part():
    call = called((0, 0))
    told = [
        net_bytes(call, OutsideBytes(0, 0, net_most=900, released=n), 1000) for n in (0, 600, 1000)
    ]
    assert [most for most, *_ in told] == [1000, 1500, 1900]


def test_outputs_that_the_code_drops_stay_in_the_plan():
    """A device's record tells that they go; on a CPU their release is told apart."""
    gone = (Result(None, 1, 100),)
    stretch = OutsideBytes(500, 300, net_most=400, net_left=200, released=100)
    call = replace(called((0, 0)), results=gone, gone=frozenset({0}))
    assert net_bytes(call, stretch, 0)[:2] == (400, 300)
    call = replace(called((0, 0), "cuda"), results=gone, gone=frozenset({0}))
    assert net_bytes(call, stretch, 0)[:2] == (400, 300)


def test_halves_that_other_models_plan_take_nothing_here():
    """As of a generator behind its critic's backward: what they leave is there, no more."""
    meter, calls = StepMeter(Told()), StepCalls([called((0, 0))])
    for what in (APART, BACK):
        meter.mark(what, -1)
    run(meter, calls, (0, -1))
    for what in (APART, BACK):
        meter.mark(what, -1)
    stretches = meter.stop()  # of 1 byte, 2 apart, 3; forward 4, 5; backward 6, 7; 8 apart, 9
    assert meter.before(stretches)[:2] == (1 + 2 + 3, 1 + 2 + 3)
    record = meter.record(stretches, calls, NOTHING, 0)
    assert [it[:2] for it in record.after_forward] == [(5, 5)]
    assert [it[:2] for it in record.after_backward] == [(7 + 8 + 9, 7 + 8 + 9)]
    apart = [OutsideBytes(it.most, 0) for it in stretches]
    assert meter.before(apart).most == 3
    assert meter.record(apart, calls, NOTHING, 0).after_backward[0].most == 9


def test_what_the_step_before_has_left_counts_until_the_first_backward():
    """The code in front of that may release it, which the stretch's net bytes tell."""
    meter = StepMeter(Told())
    run(meter, StepCalls([called((0, 0))]), (0, -1))
    meter.mark("backward is over", -1)
    tops = [3, 10, 90, 40, 50, 1000]  # the start, two halves with what follows, what is behind
    stretches = [OutsideBytes(0, 0, top=it) for it in tops]
    stretches[2] = OutsideBytes(0, 0, level=5, top=90, net_most=20)
    assert meter.top_bytes(stretches) == 50
    stretches[2] = OutsideBytes(0, 0, level=5, top=90, net_most=70)
    assert meter.top_bytes(stretches) == 75
    # All of it is there until the stretch in front of the first backward begins.
    assert meter.front_top_bytes(stretches) == 10
    stretches[2] = OutsideBytes(0, 0, level=15, top=90, net_most=70)
    assert meter.front_top_bytes(stretches) == 15
    stretches[2] = OutsideBytes(25, 0, level=15, top=90, net_most=20)
    assert meter.early_top_bytes(stretches) == 15 + 25


def test_what_goes_of_what_was_there_before_is_free_from_the_next_mark_on():
    released = []

    class Telling(Told):
        def release(self, num_bytes):
            released.append((self.num_marks, num_bytes))

    meter, gradient, image = StepMeter(Telling()), torch.zeros(10), torch.zeros(20)
    meter.from_before = results_of([gradient, gradient[:5], image])
    meter.mark("forward", 0)
    del gradient
    meter.mark("after forward", 0)
    del image
    meter.mark("backward", 0)
    assert released == [(1, 40), (2, 80)]

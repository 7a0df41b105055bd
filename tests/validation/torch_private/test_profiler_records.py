"""The profiler's record of the CPU allocator."""

from __future__ import annotations

import torch
from schedsim.validation.measure.quiet import quiet_stderr
from schedsim.validation.torch_private.profiler_records import (
    allocator_events,
    is_profiling,
    marks,
)
from torch.profiler import ProfilerActivity, profile, record_function, schedule


def test_allocations_and_marks_are_in_order_of_time():
    """With their addresses."""
    recorder = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    assert not is_profiling()
    with quiet_stderr():
        recorder.start()
    assert is_profiling()
    with record_function("here"):
        pass
    x = torch.zeros(1000)
    del x
    with quiet_stderr():
        recorder.stop()
    assert not is_profiling()
    [begin] = marks(recorder, "here")
    (made, (place, size)), (freed, (other, back)) = sorted(allocator_events(recorder))
    assert (size, back, place == other) == (4000, -4000, True)
    assert begin < made <= freed


def test_what_was_recorded_is_freed_at_once():
    """Left to the collector of cycles, it was freed within the next record, and damaged memory."""
    from schedsim.validation.measure.allocator import AllocatorRecord

    record = AllocatorRecord()
    record.start()
    record.mark()
    torch.zeros(1000)
    record.stop()
    assert record._recorder.profiler is None


def test_a_profiler_in_its_warm_up_counts_as_one_that_runs():
    """One that began meanwhile would end what was made ready, and torch with it."""
    steps = schedule(wait=1, warmup=1, active=1, repeat=1)
    found = []
    with quiet_stderr(), profile(activities=[ProfilerActivity.CPU], schedule=steps) as own:
        for _ in range(4):
            found.append(is_profiling())
            own.step()
    assert found == [False, True, True, False]

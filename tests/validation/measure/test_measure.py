"""The meters, against sizes that are known and against each other."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.measure import StorageTracker, allocator_record  # noqa: E402
from schedsim.validation.measure.allocator import AllocatorRecord  # noqa: E402
from schedsim.validation.measure.quiet import quiet_stderr  # noqa: E402
from schedsim.validation.torch_private.profiler_records import is_profiling  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402

from schedsim.errors import SchedsimError  # noqa: E402


def test_a_backward_is_seen():
    """Gradients and their temporaries, by hand: x -> x * w -> sum."""
    w = torch.ones(1000, requires_grad=True)
    w.grad = torch.zeros(1000)
    with StorageTracker() as tracker:
        tracker.add([w, w.grad], "static")
        loss = (torch.ones(1000) * w).sum()  # input and product: 8000; the product dies
        tracker.mark()
        loss.backward()
    # Alive before: w, its gradient, x, the scalars. The product of the gradient is made new.
    assert tracker.live_bytes == 8000 + 4
    assert tracker.peak.total_bytes >= 8000 + 4000 + 4000


def test_a_record_leaves_the_profiler_of_the_caller_alone():
    """A second profiler would empty the first without a word."""
    allocator_record(torch.Size)  # ends what an earlier test has left on
    with quiet_stderr(), profile(activities=[ProfilerActivity.CPU]) as own:
        torch.zeros(10)
        with pytest.raises(SchedsimError, match=r"torch\.profiler is on"):
            allocator_record(lambda: torch.ones(10))
    assert "aten::zeros" in {event.name for event in own.events()}
    [(changes, _)] = allocator_record(lambda: torch.ones(10))
    assert changes == [40]


def test_a_profiler_of_the_caller_ends_a_record_that_runs():
    """Else the caller's would be emptied where the record ends, and torch would crash behind it."""
    record = AllocatorRecord()
    record.start()
    record.mark()
    with quiet_stderr(), profile(activities=[ProfilerActivity.CPU]) as own:
        assert record.stop() == []
        torch.zeros(10)
    assert "aten::zeros" in {event.name for event in own.events()}


def test_a_fork_ends_a_record_that_runs():
    """A worker that loads data has no profiler."""
    record = AllocatorRecord()
    record.start()
    child = os.fork()
    if not child:
        os._exit(is_profiling())
    assert os.waitpid(child, 0)[1] == 0
    assert record.stop() == []


def test_a_record_that_begins_ends_the_one_before():
    """What the first one has seen is gone, and its reader learns it."""
    first, second = AllocatorRecord(), AllocatorRecord()
    first.start()
    first.mark()
    second.start()
    second.mark()
    kept = torch.ones(10)
    [[(_, size)]] = second.stop()
    assert (size, first.stop()) == (40, [])
    del kept

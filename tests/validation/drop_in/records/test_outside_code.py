"""What the caller's code takes between marks."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.records.outside_code import CpuOutside, outside_meter  # noqa: E402


def test_stretches_count_what_they_made():
    """The most and what is left; what was there before does not count when it goes."""
    before = torch.zeros(1000)
    meter = CpuOutside()
    meter.start()
    kept = torch.zeros(100)
    meter.mark()
    del before
    big = torch.zeros(500)
    del big
    left = torch.zeros(50)
    meter.mark()
    first, second, third = meter.stop()
    assert (first.most, first.left) == (400, 400)
    assert (second.most, second.left) == (2000, 200)
    assert (third.most, third.left) == (0, 0)
    del kept, left


def test_what_is_there_at_the_end_is_told_by_the_stretch_that_made_it():
    """Apart from that of the last stretch."""
    meter = CpuOutside()
    meter.start()
    gone, held = torch.zeros(10), torch.zeros(20)
    meter.mark()
    del gone
    left = torch.zeros(30)
    meter.stop()
    assert meter.held_blocks == {held.data_ptr(): 80}
    assert meter.left_blocks == {left.data_ptr(): 120}


def test_what_is_released_of_what_was_there_before_is_counted_from_then_on():
    """A stretch is one still: the most in it is with what was there, or after it is gone."""
    meter = CpuOutside()
    meter.start()
    kept = torch.zeros(100)
    meter.mark()
    big = torch.zeros(500)
    meter.release(1600)
    meter.release(0)
    small = torch.zeros(10)
    meter.mark()
    first, second, third = meter.stop()
    assert first[:4] == (400, 400, 0, 400)
    assert second[:4] == (2040, 2040, 400, 2400)
    assert third[:4] == (0, 0, 400 + 2000 - 1600 + 40, 840)
    del kept, big, small


def test_the_release_of_a_watched_block_counts():
    meter = CpuOutside()
    meter.start()
    first, other = torch.zeros(100), torch.zeros(50)
    meter.mark({first.data_ptr(): 400})
    del first, other
    later = torch.zeros(30)
    *_, stretch = meter.stop()
    assert (stretch.most, stretch.left) == (120, 120)
    assert (stretch.net_most, stretch.net_left, stretch.released) == (0, 120 - 400, 400)
    assert later.shape == (30,)


def test_one_profiler_at_a_time():
    """Where somebody else is profiling, there is no meter."""
    meter = CpuOutside()
    meter.start()
    try:
        assert outside_meter(torch.device("cpu")) is None
    finally:
        meter.stop()
    assert outside_meter(torch.device("cpu")) is not None


def test_a_release_counts_by_the_bytes_of_its_block_whatever_the_record_tells():
    """A record remembers what was at the address under an earlier one, and tells its bytes."""
    meter = CpuOutside()
    meter.start()
    block = torch.zeros(100)
    meter.mark({block.data_ptr(): 160})
    del block
    *_, stretch = meter.stop()
    assert (stretch.net_left, stretch.released) == (-160, 160)

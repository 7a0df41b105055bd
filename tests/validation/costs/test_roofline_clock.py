"""Roofline seconds of ops as they run, for code that is not captured as a graph."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.costs.roofline_clock import RooflineClock  # noqa: E402


def test_the_roofline_clock_adds_up_ops():
    """A product by its arithmetic, a sum by its traffic, a view by nothing.

    512 x 512 x 512 x 2 flops at 19.5 Tflop/s are 13.77 us (its traffic, 3 MiB at 2039 GB/s, 1.54);
    x + x reads 1 MiB and writes 1 MiB: 2^21 / 2039e9 = 1.03 us.
    """
    x = torch.ones(512, 512)
    with RooflineClock("a100-80gb") as clock:
        x.t()
        assert clock.elapsed_s == 0
        x @ x
        assert clock.elapsed_s == pytest.approx(2 * 512**3 / 19.5e12)
        before = clock.elapsed_s
        x + x
    assert clock.elapsed_s - before == pytest.approx(2 * 2**20 / 2039e9)

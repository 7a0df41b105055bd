"""Links between memories, and the ops that copy tensors over them."""

from __future__ import annotations

import pytest

from schedsim.plans.links import LINKS, Link, parse_link
from schedsim.units import UnitError


def test_a_copy_takes_the_latency_and_its_bytes():
    """10 bytes at 4 bytes a second and half a second: 3 s; no bytes: the latency."""
    assert Link(4.0, 0.5).time_s(10) == 3.0
    assert Link(4.0, 0.5).time_s(0) == 0.5


def test_presets_are_what_is_published():
    """Lanes times rate times encoding times packets; half of both directions of NVLink-C2C."""
    assert LINKS["pcie4"].bytes_per_s == pytest.approx(31.508e9 * 256 / 280, rel=1e-4)
    assert LINKS["pcie5"].bytes_per_s == 2 * LINKS["pcie4"].bytes_per_s
    assert parse_link("nvlink-c2c", 2e-6) == Link(450e9, 2e-6)


@pytest.mark.parametrize("text", ["pcie9", "25GB", "25/s", "0GB/s", "-1GB/s", "8G/s", "fast/s", ""])
def test_what_is_no_link_is_refused(text):
    """With what one looks like; a rate without a unit is bytes."""
    if text == "25/s":
        assert parse_link(text) == Link(25)
        return
    with pytest.raises(UnitError) as caught:
        parse_link(text)
    assert caught.value.hint

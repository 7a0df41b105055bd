"""The steps of a comparison are measured, and told where they exceed the budget."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.beside.compared_bytes import (  # noqa: E402
    PLAIN,
    PLANNED,
    ComparedBytes,
)
from schedsim.validation.measure import AllocatorMeter  # noqa: E402


def taking(numbers):
    return lambda: torch.zeros(numbers).sum()


def found_of(plain, planned):
    taken = ComparedBytes(torch.device("cpu"))
    taken.watched(PLAIN, plain)()
    taken.watched(PLANNED, planned)()
    taken.ends()
    return taken


def test_the_larger_step_is_told_with_its_bytes():
    taken = found_of(taking(1000), taking(5000))
    assert 4000 <= taken.tops[PLAIN] < 4100
    assert 20_000 <= taken.tops[PLANNED] < 20_100
    (line,) = taken.lines(980_000, 999_000, is_broken=True)
    assert "1.00 MB" in line
    assert "between its graphs" in line
    assert list(taken.lines(980_000, 1_001_000, is_broken=True)) == []
    (line,) = found_of(taking(5000), taking(1000)).lines(980_000, 999_000, is_broken=False)
    assert 'check="never"' in line


def test_a_step_in_which_ops_are_measured_is_known_as_such():
    def measures():
        AllocatorMeter().read(taking(10))

    taken = found_of(taking(1000), measures)
    assert taken.cut == {PLANNED}
    assert taken.tops.keys() == {PLAIN}

"""The cases of the memory campaign."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.campaigns.memory_cases import CASES

from schedsim.allocators import CachingOptions


def test_cases_are_told_apart_by_name_and_by_what_they_run():
    """The file of results knows a case by its name alone."""
    assert len({case.name for case in CASES}) == len(CASES)
    runs = {(c.target, c.level, c.conf, c.keeps_gradients) for c in CASES}
    assert len(runs) == len(CASES)


def test_settings_are_modelled():
    """Each is among those that `schedsim.allocate` plays, and not its default."""
    for conf in {case.conf for case in CASES} - {""}:
        assert CachingOptions.parse(conf) != CachingOptions()

"""Variables of the environment, read before each step."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from schedsim.validation.drop_in.environment_reader import EnvironmentReader


@pytest.mark.parametrize("encodes", [True, False])
def test_a_change_is_seen(encodes, monkeypatch):
    reader = EnvironmentReader(["SOME_VARIABLE", "ANOTHER_ONE"])
    if not encodes:
        reader._keys = None
    monkeypatch.setenv("SOME_VARIABLE", "1")
    before = reader.read()
    assert reader.read() == before
    monkeypatch.setenv("ANOTHER_ONE", "ä")
    assert reader.read() != before
    monkeypatch.delenv("ANOTHER_ONE")
    assert reader.read() == before

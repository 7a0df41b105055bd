"""Where the workload of a plan comes from, in words."""

from __future__ import annotations

import pytest

from schedsim.plans.source import SOURCE_KINDS, WorkloadSource


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (WorkloadSource("formula", {"layers": 96, "dtype": "bf16"}), "layers=96 dtype=bf16"),
        (WorkloadSource("file", path="chain.json"), "chain.json"),
        (WorkloadSource("model", {"level": "op"}, target="hf:gpt2"), "hf:gpt2"),
    ],
)
def test_it_is_said_as_it_was_given(source, says):
    """A source of every kind."""
    assert source.kind in SOURCE_KINDS
    assert str(source) == says

"""Data for JAX: segments of a chain, names of a graph."""

from __future__ import annotations

import json

from small_exports import OPS, loose, tight


def test_segments_are_the_stages_that_run_twice():
    """Half-open, in order."""
    exported = tight("jax")
    document = json.loads(exported.text)
    inside = {i for start, stop in document["segments"] for i in range(start, stop)}
    names = exported.schedule.names
    assert inside == {i for i in range(document["num_stages"]) if names.count(f"F{i}") == 2}
    assert json.loads(loose("jax").text)["segments"] == []


def test_names_are_kinds_of_the_layers_ops():
    """Where nothing is recomputed all are saved, and nothing goes to the host."""
    policy = json.loads(loose("jax", True).text)["policy"]
    assert policy["names_which_can_be_offloaded"] == []
    kinds = policy["names_which_can_be_saved"]
    assert len(set(kinds)) == len(kinds) == 13
    assert all(any(op.name.endswith(kind) for op in OPS.ops) for kind in kinds)

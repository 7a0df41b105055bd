"""The runs of an experiment, each with the key under which its result is found again."""

from __future__ import annotations

import schedsim
from schedsim.sweeps import run_key

CHAIN = schedsim.Chain.from_arrays(
    "four", 4, forward_s=[1] * 4, backward_s=[2] * 4, output_bytes=[4] * 4, saved_bytes=[20] * 4
)


def test_keys_are_of_content():
    """The name of a workload is no part of it; everything that decides the result is."""
    arrays = {"forward_s": [1] * 4, "backward_s": [2] * 4, "output_bytes": [4] * 4}
    same = schedsim.Chain.from_arrays("renamed", 4, **arrays, saved_bytes=[20] * 4)
    other = schedsim.Chain.from_arrays("four", 4, **arrays, saved_bytes=[21] * 4)
    key = run_key(CHAIN, 60, "rotor", {}, None)
    assert key == run_key(same, 60, "rotor", {}, None)
    different = {
        run_key(other, 60, "rotor", {}, None),
        run_key(CHAIN, 61, "rotor", {}, None),
        run_key(CHAIN, 60, "frontier", {}, None),
        run_key(CHAIN, 60, "rotor", {"gap": 0.1}, None),
        run_key(CHAIN, 60, "rotor", {}, 0),
    }
    assert len(different) == 5
    assert key not in different

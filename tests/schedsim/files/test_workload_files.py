"""Reading and writing ``schedsim.chain/1`` and ``schedsim.graph/1``."""

from __future__ import annotations

import json

import numpy as np
import pytest
from chains import random_chain, random_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

import schedsim
from schedsim import InvalidWorkloadError
from schedsim.files.document import from_dict, to_dict
from schedsim.files.workload_files import MOST_OPS, MOST_STAGES, workload_hash


@given(seed=st.integers(0, 10**9), size=st.integers(1, 9))
@settings(max_examples=examples(200))
def test_round_trips(seed, size):
    """Chains, graphs and plans come back equal, hash included, through JSON text."""
    rng = np.random.default_rng(seed)
    for item in (random_chain(rng, size, integer_times=False), random_graph(rng, size)):
        back = from_dict(json.loads(json.dumps(to_dict(item))))
        assert back == item
        assert workload_hash(back) == workload_hash(item)
        for budget in (0, 10**9):
            plan = schedsim.api.try_plan(item, budget, "store_all")
            again = from_dict(json.loads(json.dumps(to_dict(plan))))
            assert to_dict(again) == to_dict(plan)
            assert again.schedule == plan.schedule


@pytest.mark.parametrize(
    ("kind", "document", "most"),
    [
        ("stages", {"schema": "schedsim.chain/1", "name": "long", "input_bytes": 1}, MOST_STAGES),
        ("ops", {"schema": "schedsim.graph/1", "name": "long"}, MOST_OPS),
    ],
)
def test_more_than_memory_holds_is_refused_at_once(kind, document, most):
    """Before one stage or op of them is read: the last would come after minutes and gigabytes."""
    with pytest.raises(InvalidWorkloadError, match=f"{kind}: .* are more than {most:,}") as caught:
        from_dict({**document, kind: [None] * (most + 1)})
    assert "join" in caught.value.hint
    with pytest.raises(InvalidWorkloadError, match=rf"{kind}\[0\]"):
        from_dict({**document, kind: [None] * most})

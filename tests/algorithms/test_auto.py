"""The planner that most users want: exact where it can be, proven where it cannot."""

from __future__ import annotations

import numpy as np
from chains import random_chain
from schedsim.algorithms.auto import auto

from schedsim import Schedule, simulate


def test_auto_prefers_proofs_and_lists_what_it_tried():
    """Store-all where it fits, else the frontier, else rotor."""
    chain = random_chain(np.random.default_rng(3), 10)
    store_all = simulate(chain, Schedule.store_all(chain)).peak_bytes
    assert auto(chain, store_all).found_by == "store_all"
    plan = auto(chain, store_all - 1)
    assert (plan.status, plan.found_by) == ("optimal", "frontier")
    assert [row.planner for row in plan.candidates] == ["store_all", "frontier"]

"""The least budget: what is known of how much memory a workload needs."""

from __future__ import annotations

from schedsim.plans.least_budget import LeastBudget, least_of
from schedsim.plans.scope import ANY_SCHEDULE, FIXED_ORDER, PERSISTENT


def test_the_words_claim_what_is_proven():
    """A number that was only found is never called the least."""
    assert "proven least" in LeastBudget(5, "f", 5, PERSISTENT).sentence()
    assert "found" in LeastBudget(5, "f", 4, PERSISTENT).sentence("F0")
    assert "least" not in LeastBudget().sentence()


def test_several_planners_know_what_each_knows():
    """The least number found; a floor above it speaks of fewer schedules, and is left out."""
    found = least_of(
        [LeastBudget(9), LeastBudget(7, "f", 3), LeastBudget(None, None, 8, FIXED_ORDER)]
    )
    assert found == LeastBudget(7, "f", 3, ANY_SCHEDULE)
    assert least_of([LeastBudget(9)], peak_bytes=8) == LeastBudget()
    assert least_of([LeastBudget(9), LeastBudget(9, "g", 9, PERSISTENT)]).proven

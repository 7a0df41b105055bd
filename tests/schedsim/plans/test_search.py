"""What ended a search, and what that means for whoever runs it again."""

from __future__ import annotations

import pytest
from training_graphs import unit_training_chain

import schedsim
from schedsim.plans.effort import ENDED_BY
from schedsim.plans.search import NO_SEARCH, SearchRecord


@pytest.mark.parametrize(
    ("ended_by", "again", "interrupted"),
    [
        ("itself", True, False),
        ("work", True, False),
        ("stop", False, False),
        ("clock", False, False),
        ("interrupt", False, True),
    ],
)
def test_only_what_counts_work_is_found_again(ended_by, again, interrupted):
    """Neither a clock nor a caller nor a person ends a search at the same move twice."""
    record = SearchRecord(ended_by=ended_by)
    assert (record.reproducible, record.interrupted) == (again, interrupted)


def test_every_end_is_told_apart():
    """A new one has to say whether it is reproducible: the table above has them all."""
    assert set(ENDED_BY) == {"itself", "work", "stop", "clock", "interrupt"}


def test_planners_say_what_ended_them():
    """One that computes its plan directly searched nothing; a search on a graph counts moves."""
    graph = unit_training_chain(8)
    direct = schedsim.api.try_plan(graph, 10**6, "store_all")
    assert direct.search == NO_SEARCH
    peak = direct.peak_bytes
    found = schedsim.api.try_plan(graph, peak - 2, "local_search", effort=0.05)
    assert found.search.ended_by in ("itself", "work")
    assert found.search.num_moves is not None
    assert found.search.reproducible

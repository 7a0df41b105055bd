"""The table of planners: what each is, what it costs, and what its word optimal speaks of."""

from __future__ import annotations

import pytest
from schedsim.algorithms import PLANNERS, get_planner


@pytest.mark.parametrize("name", list(PLANNERS))
def test_registry_rows_load(name):
    """Each row names a function with a docstring that has an example."""
    planner = get_planner(name).load()
    assert planner.__name__ == name
    assert ">>>" in planner.__doc__

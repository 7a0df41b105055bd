"""The arguments of `rematerialize`, read before anything runs."""

from __future__ import annotations

from dataclasses import fields
from functools import partial

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.whole_step.step_settings import Settings

from schedsim.errors import SchedsimError, UnsupportedError


@pytest.mark.parametrize(
    ("given", "line", "remedy"),
    [
        ({"level": "ops"}, "level='ops' is unknown", "auto, op or block"),
        ({"costs": "guessed"}, "costs='guessed' is unknown", "measured or operations"),
        ({"accumulate": 0}, "accumulate=0 is not understood", "a number of micro-batches"),
        ({"accumulate": True}, "accumulate=True is not understood", "'auto'"),
    ],
)
def test_a_value_that_is_not_understood_is_named_with_its_remedy(given, line, remedy):
    with pytest.raises(SchedsimError, match=line) as refused:
        Settings("90%", **given)
    assert remedy in refused.value.hint


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"offload": True, "level": "op"}, "offload= is of the block level"),
        ({"compile": True, "level": "block"}, "compile=True is of the op level"),
        ({"compile": True, "offload": True}, "offload= of the block level"),
    ],
)
def test_what_one_level_alone_can_do_is_refused_at_another(given, line):
    with pytest.raises(UnsupportedError, match=line):
        Settings("90%", **given)


def test_what_all_ranks_must_have_alike_is_told_by_name():
    """But not the budget, of which the smallest counts, and nothing that no plan depends on."""
    names = {field.name for field in fields(Settings)}
    alike = dict(Settings("90%", level="op", options={"effort": 2.0}).alike())
    assert alike.keys() < names - {"budget", "ranks", "extra_bytes"}
    assert (alike["level"], alike["options"]) == ("'op'", "{'effort': 2.0}")


def test_a_planner_of_ones_own_is_the_same_on_ranks_where_it_lies_elsewhere():
    """Each process has made it anew; what it is called with counts."""

    def made():
        def planner(workload, budget_bytes):
            raise AssertionError

        return planner

    one, other = (Settings("90%", planner=made()).alike() for _ in range(2))
    assert one == other
    assert "planner" in dict(one)["planner"]
    bound = [Settings("90%", planner=partial(made(), seed=seed)).alike() for seed in (1, 1, 2)]
    assert bound[0] == bound[1] != bound[2]

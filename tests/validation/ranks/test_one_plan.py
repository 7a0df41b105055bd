"""A plan made once, on the first rank, and followed by all."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from chains import unit_chain
from made_ranks import on_ranks
from schedsim.validation.ranks.one_plan import check_one_plan, plan_hash, planned_once
from schedsim.validation.ranks.ranks import ALONE

import schedsim
from schedsim.errors import SchedsimError

CHAIN = unit_chain(6)


def test_the_first_rank_plans_and_all_have_its_plan():
    """Nobody else calls the planner."""
    calls = []

    def work(ranks, rank):
        def make():
            calls.append(rank)
            return schedsim.plan(CHAIN, 10, "frontier")

        return planned_once(make, CHAIN, ranks)

    found = on_ranks(3, work)
    assert calls == [0]
    assert len({plan_hash(plan) for plan in found}) == 1
    assert found[0].feasible
    assert planned_once(lambda: "made", CHAIN, ALONE) == "made"


def test_what_the_first_rank_cannot_plan_fails_all():
    """With its error, told whose it is."""

    def work(ranks, rank):
        return planned_once(lambda: schedsim.plan(CHAIN, 2, "frontier"), CHAIN, ranks)

    found = on_ranks(2, work)
    assert [type(error) for error in found] == [schedsim.InfeasibleBudgetError] * 2
    assert found[1].message.startswith("rank 0: ")


@pytest.mark.parametrize("what", ["plan", "step"])
def test_another_plan_or_step_is_refused_on_all(what):
    """The message names the rank, and both hashes."""
    plans = [schedsim.plan(CHAIN, budget, "frontier") for budget in (10, 11)]
    chains = [CHAIN, replace(CHAIN, static_bytes=1)]

    def work(ranks, rank):
        plan = plans[rank if what == "plan" else 0]
        return check_one_plan(plan, chains[rank if what == "step" else 0], ranks)

    found = on_ranks(2, work)
    assert all(isinstance(error, SchedsimError) for error in found)
    assert f"rank 1 has another {what} than rank 0: " in found[0].message
    assert found[0].message == found[1].message

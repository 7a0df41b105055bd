"""Scopes are ordered by inclusion, and their words are read back as what they were."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

import schedsim
from schedsim.plans.scope import (
    ANY_SCHEDULE,
    COPIES,
    COPIES_IN_ORDER,
    FIXED_ORDER,
    PERSISTENT,
    PERSISTENT_IN_PARTITION,
    PERSISTENT_VARIANTS,
    THIS_PARTITION,
    Scope,
    common,
)

ALL = [
    ANY_SCHEDULE,
    FIXED_ORDER,
    PERSISTENT,
    PERSISTENT_VARIANTS,
    COPIES,
    COPIES_IN_ORDER,
    THIS_PARTITION,
    PERSISTENT_IN_PARTITION,
    replace(PERSISTENT_IN_PARTITION, partition=4),
    Scope(other="whatever a later version says"),
    *(replace(FIXED_ORDER, rounds=k) for k in (1, 2)),
    *(replace(ANY_SCHEDULE, most_repeats=k) for k in (0, 1, 3)),
    *(replace(FIXED_ORDER, most_repeats=k, rounds=1) for k in (1, 2)),
]
scopes = st.sampled_from(ALL)


def test_words_are_those_of_plan_files():
    """Files of earlier versions hold these texts."""
    assert [str(scope) for scope in ALL[:6]] == [
        "any schedule",
        "fixed order of first runs",
        "persistent schedules",
        "persistent schedules with the variants allowed",
        "any schedule with copies on this link",
        "fixed order of first runs, with copies on this link",
    ]
    rounds = "one round of repeats in that order before each"
    assert str(replace(FIXED_ORDER, rounds=1)) == f"fixed order of first runs, {rounds}"
    assert str(replace(FIXED_ORDER, most_repeats=1, rounds=1)) == (
        f"fixed order of first runs, at most 1 repeat of an op, {rounds}"
    )
    assert str(replace(ANY_SCHEDULE, most_repeats=3)) == "any order, at most 3 repeats of an op"


@given(scopes)
def test_words_are_read_back(scope):
    """The words of every scope are read back; two scopes never share their words."""
    assert Scope.parse(str(scope)) == scope


@given(st.text(max_size=40))
def test_any_text_is_a_scope(text):
    """A text that nobody wrote is a class of its own, under its own words."""
    scope = Scope.parse(text)
    assert str(scope) == text or scope == Scope()
    assert scope in ALL or not scope <= ANY_SCHEDULE


@given(scopes, scopes, scopes)
def test_inclusion_is_a_partial_order(a, b, c):
    """Reflexive, antisymmetric, transitive."""
    assert a <= a
    assert not (a <= b and b <= a) or a == b
    assert not (a <= b and b <= c) or a <= c
    assert (a < b) == (a <= b and a != b)


def test_what_is_within_what():
    """Fewer freedoms, fewer schedules; copies and variants are freedoms."""
    assert PERSISTENT < FIXED_ORDER < ANY_SCHEDULE < COPIES
    assert PERSISTENT < PERSISTENT_VARIANTS
    assert FIXED_ORDER < COPIES_IN_ORDER < COPIES
    assert replace(FIXED_ORDER, rounds=1) < replace(FIXED_ORDER, rounds=2) < FIXED_ORDER
    assert not COPIES_IN_ORDER <= ANY_SCHEDULE
    assert not ANY_SCHEDULE <= COPIES_IN_ORDER
    assert not PERSISTENT_VARIANTS <= ANY_SCHEDULE


def test_the_common_scope_is_the_narrowest():
    """Where two are the narrowest, only any schedule is left."""
    assert common([ANY_SCHEDULE, COPIES]) == ANY_SCHEDULE
    assert common([FIXED_ORDER, PERSISTENT, ANY_SCHEDULE]) == PERSISTENT
    assert common([COPIES_IN_ORDER, ANY_SCHEDULE]) == ANY_SCHEDULE
    assert common([]) == ANY_SCHEDULE


def test_plans_carry_scopes_through_files(tmp_path):
    """A plan that is saved and loaded speaks of the same class, candidates too."""
    chain = schedsim.Chain.from_arrays(
        "two", 4, forward_s=[1, 1], backward_s=[2, 2], output_bytes=[4, 4], saved_bytes=[10, 10]
    )
    plan = schedsim.plan(chain, 26)
    schedsim.save(plan, tmp_path / "plan.json")
    again = schedsim.load(tmp_path / "plan.json")
    assert again.bound_scope == plan.bound_scope == PERSISTENT
    assert again.candidates == plan.candidates

"""What is said of reserved bytes: of the plan's allocator, or the one that is asked for."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

import schedsim
from schedsim import Chain, Schedule, simulate
from schedsim.cli.shown.allocations import (
    allocations,
    allocations_with_problems,
    allocator_words,
    describe,
    document,
    of_plan,
)
from schedsim.pipelines import keep_all, make_order, make_pipeline, run_pipeline

MIB = 1 << 20
CHAIN = Chain.from_arrays(
    "three", 3 * MIB, forward_s=[1] * 3, backward_s=[2] * 3, output_bytes=[3 * MIB] * 3,
    saved_bytes=[9 * MIB] * 3,
)  # fmt: skip
GROWING = {"expandable_segments": True}


@cache
def stored():
    """Store-all, simulated."""
    return simulate(CHAIN, Schedule.store_all(CHAIN))


@cache
def planned():
    """A plan within reserved bytes."""
    return schedsim.plan(CHAIN, 100 * MIB, allocator="cuda-caching", allocator_options=GROWING)


def test_the_allocator_of_a_plan_and_the_words_for_it():
    """None of a plan for exact bytes; settings as the environment variable has them."""
    assert of_plan(planned()) == ("cuda-caching", GROWING)
    assert allocator_words(planned()) == [
        *("--allocator", "cuda-caching", "--alloc-conf", "expandable_segments:True")
    ]
    plain = schedsim.plan(CHAIN, 100 * MIB)
    assert of_plan(plain) == of_plan(None) == (None, {})
    assert allocator_words(plain) == []
    arena = schedsim.plan(CHAIN, 100 * MIB, allocator="best-fit")
    assert allocator_words(arena) == ["--allocator", "best-fit"]


def test_a_device_is_as_large_as_the_budget_only_where_it_must_be():
    """One that is never full waits for nothing; what reserves more is tried on the real size."""
    free = allocations(stored(), "cuda-caching", None, {})["device"]
    reserved = free.peak_reserved_bytes
    fits = allocations(stored(), "cuda-caching", reserved, {})["device"]
    assert (fits.capacity_bytes, fits.peak_reserved_bytes) == (None, reserved)
    tight = allocations(stored(), "cuda-caching", reserved - 1, {})["device"]
    assert tight.capacity_bytes == reserved - 1


def test_each_device_of_a_pipeline_has_its_own():
    """And says which it is; host memory has none."""
    run = run_pipeline(make_pipeline(CHAIN, 3, 2), make_order("1f1b", 3, 2), [keep_all(1)] * 3)
    found = allocations(run.simulation, "best-fit", None, {})
    assert [pool for pool in found if found[pool].bound_bytes] == [
        *("device:0", "device:1", "device:2")
    ]
    facts = dict(describe("device:1", found["device:1"]))
    assert " on device:1 by best-fit" in facts["reserved"]
    assert " on " not in dict(describe("device", found["device:1"]))["reserved"]


def test_numbers_in_words_and_in_the_document():
    """What failed and how often the device was full stand there only where it was."""
    one = allocations(stored(), "cuda-caching", None, {})["device"]
    facts = dict(describe("device", one))
    assert set(facts) == {"reserved", "  allocated", "  stuck"}
    assert f"{one.extra:+.2%}".replace("%", " %") + " over requested" in facts["reserved"]
    odd = replace(one, num_emptied=2, fits=False, failed_item="x")
    facts = dict(describe("device", odd))
    assert facts["  emptied"] == "2 times, as the device was full"
    assert facts["  fails"] == "asking for x"
    told = document(odd)
    assert (told["num_emptied"], told["fits"], told["failed_item"]) == (2, False, "x")
    assert told["requested_bytes"] == stored().peak_bytes
    assert told["peak_reserved_bytes"] == one.peak_reserved_bytes


def test_without_an_allocator_there_is_nothing_to_check():
    """Nor with exact bytes."""
    assert allocations_with_problems(stored(), None, 1, None, None) == ({}, [])
    assert allocations_with_problems(stored(), planned(), 1, "exact", None) == ({}, [])


def test_the_plans_own_allocator_is_checked_unless_another_is_asked_for():
    """Another one says nothing about the plan's number."""
    simulation = planned().simulate(CHAIN)
    found, wrong = allocations_with_problems(
        simulation, planned(), planned().budget_bytes, None, None
    )
    assert wrong == []
    assert found["device"].options["expandable_segments"]
    choice = replace(planned().setting.allocator, reserved_bytes=1)
    lying = replace(planned(), setting=replace(planned().setting, allocator=choice))
    reserved = found["device"].peak_reserved_bytes
    _, wrong = allocations_with_problems(simulation, lying, planned().budget_bytes, None, None)
    assert wrong == [f"the plan says 1 bytes reserved, the replay {reserved}"]
    assert allocations_with_problems(simulation, lying, None, "best-fit", None)[1] == []


def test_too_small_a_device_is_wrong():
    """By its name and size."""
    _, wrong = allocations_with_problems(stored(), None, 10 * MIB, "best-fit", None)
    assert len(wrong) == 1
    assert wrong[0].startswith("best-fit runs out of memory on a device of 10.49 MB")


@pytest.mark.parametrize("allocator", [None, "best-fit"])
def test_settings_without_their_allocator_are_refused(allocator):
    """Also beside a plan that has one of its own."""
    with pytest.raises(schedsim.SchedsimError, match="--alloc-conf belongs to"):
        allocations_with_problems(stored(), planned(), None, allocator, "expandable_segments:True")

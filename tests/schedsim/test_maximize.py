"""The largest size that fits: against a search over all sizes, and what its proof rests on."""

from __future__ import annotations

import dataclasses
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

import schedsim
from schedsim.dataflow.recorded_step import RecordedStep
from schedsim.errors import InfeasibleBudgetError, SchedsimError
from schedsim.plans.maximize import contains
from schedsim.plans.search import SearchRecord
from schedsim.workloads import WorkloadOptions, build_workload


def scaled(batch: int) -> schedsim.Chain:
    """Four stages whose bytes and times grow with the batch; a step has a fixed cost too."""
    return schedsim.Chain.from_arrays(
        "four",
        4 * batch,
        forward_s=[1 + batch] * 4,
        backward_s=[2 + batch] * 4,
        output_bytes=[4 * batch] * 4,
        saved_bytes=[20 * batch] * 4,
    )


def jagged(size: int) -> schedsim.Chain:
    """Memory that falls at every eighth size, as a padded kernel's would."""
    return scaled(size // 3 + 1 if size % 8 == 0 else size)


def by_trying_all(family, budget: int, most: int) -> tuple[int, int]:
    """The largest size that fits, and the one of most work a second."""
    fits = {}
    for size in range(1, most + 1):
        plan = schedsim.api.try_plan(family(size), budget)
        if plan.feasible:
            fits[size] = size / plan.makespan_s
    return max(fits), max(fits, key=lambda size: (fits[size], -size))


@pytest.mark.parametrize("family", [scaled, jagged])
@pytest.mark.parametrize("budget", [60, 300, 500, 1000])
def test_as_by_trying_all(family, budget):
    """Also where memory does not grow with the size."""
    found = schedsim.maximize(family, budget)
    largest, fastest = by_trying_all(family, budget, 100)
    assert found.largest.size == largest
    assert found.largest.plan.peak_bytes <= budget
    assert found.fastest_proven
    assert abs(found.fastest.rate - fastest / schedsim.plan(family(fastest), budget).makespan_s) < (
        1e-12
    )
    assert found.beyond is not None
    assert not found.beyond.plan.feasible
    assert (found.proof, found.scope) == ("proven", "persistent schedules")


def test_a_heuristic_proves_nothing():
    """What it does not find may well exist."""
    found = schedsim.maximize(scaled, 300, "periodic")
    assert (found.proof, found.scope) == ("found", "")
    assert found.largest.size <= schedsim.maximize(scaled, 300).largest.size


def test_steps_limits_and_gaps():
    """Multiples of a step; a limit reached is said; sizes that there are none of are passed by."""
    assert schedsim.maximize(scaled, 300, step=3).largest.size % 3 == 0
    limited = schedsim.maximize(scaled, 10**6, max_size=16)
    assert (limited.largest.size, limited.proof, limited.beyond) == (16, "limit", None)

    def even(size: int) -> schedsim.Chain:
        if size % 2 and size > 1:
            raise SchedsimError("no odd sizes")
        return scaled(size)

    assert schedsim.maximize(even, 300).largest.size == by_trying_all(scaled, 300, 32)[0] // 2 * 2


def test_not_even_one_fits():
    """The least budget of the least size."""
    with pytest.raises(InfeasibleBudgetError) as caught:
        schedsim.maximize(scaled, 10)
    assert caught.value.min_feasible_bytes == schedsim.pareto(scaled(1)).points[0].budget_bytes


@pytest.mark.slow
@settings(max_examples=examples(30))
@given(st.integers(0, 2**32 - 1))
def test_what_is_contained_needs_no_more(seed):
    """Random chains, each stage enlarged and others put between: the least budget does not fall."""
    rng = np.random.default_rng(seed)

    def stage(name: str, least_bytes: int = 0) -> schedsim.Stage:
        output = least_bytes + int(rng.integers(0, 6))
        saved = output + int(rng.integers(0, 9))
        workspaces = (int(w) for w in rng.integers(0, 5, size=2))
        return schedsim.Stage(name, 1, 1, output, saved, *workspaces)

    def larger(one: schedsim.Stage) -> schedsim.Stage:
        more = [int(m) for m in rng.integers(0, 4, size=4)]
        return schedsim.Stage(
            one.name,
            1,
            1,
            one.output_bytes + more[0],
            one.saved_bytes + more[0] + more[1],
            one.forward_workspace_bytes + more[2],
            one.backward_workspace_bytes + more[3],
        )

    small = schedsim.Chain(
        "small", int(rng.integers(0, 6)), tuple(stage(f"s{i}") for i in range(rng.integers(1, 5)))
    )
    cut = int(rng.integers(0, small.num_stages))
    passed = small.stages[cut - 1].output_bytes if cut else small.input_bytes
    extra = [stage(f"x{i}", passed) for i in range(rng.integers(0, 3))]
    grown = [larger(one) for one in small.stages]
    big = schedsim.Chain(
        "big", small.input_bytes + int(rng.integers(0, 3)), (*grown[:cut], *extra, *grown[cut:])
    )
    assert contains(big, small)
    least = {}
    for chain in (small, big):
        for planner in ("frontier", "exhaustive"):
            least[chain.name, planner] = schedsim.api.try_plan(chain, 0, planner).min_feasible_bytes
    assert least["small", "frontier"] <= least["big", "frontier"]
    if least["big", "exhaustive"] is not None and least["small", "exhaustive"] is not None:
        assert least["small", "exhaustive"] <= least["big", "exhaustive"]


def test_one_byte_less_is_not_contained():
    """Anywhere: input, static, a stage's sizes; nor is a chain in a graph."""
    chain = scaled(2)
    assert contains(chain, chain)
    fields = ("output_bytes", "saved_bytes", "forward_workspace_bytes", "backward_workspace_bytes")
    for place in fields:
        sizes = {**dict.fromkeys(fields, 30), "saved_bytes": 90}
        whole = schedsim.Chain("c", 4, (schedsim.Stage("s", 1, 1, **sizes),))
        less = {**sizes, place: sizes[place] - 1}
        if place == "output_bytes":
            less["saved_bytes"] -= 1  # so that the rest of what is saved stays
        assert not contains(schedsim.Chain("c", 4, (schedsim.Stage("s", 1, 1, **less),)), whole)
        assert contains(whole, schedsim.Chain("c", 4, (schedsim.Stage("s", 1, 1, **less),)))
    assert not contains(chain, chain.graph)


def test_formulas_are_compared_and_not_planned():
    """Graphs and chains of a formula grow op by op with the batch."""
    for granularity in ("layer", "block", "op"):
        sizes = [
            build_workload(
                WorkloadOptions(preset="gpt2", granularity=granularity, batch=batch)
            ).workload
            for batch in (2, 3)
        ]
        assert contains(sizes[1], sizes[0])
        assert not contains(sizes[0], sizes[1])
    deeper = [build_workload(WorkloadOptions(layers=n, static="auto")).workload for n in (3, 5)]
    assert contains(deeper[1], deeper[0])


def test_an_interrupt_ends_the_search(monkeypatch):
    """An anytime planner answers it with its best; no other size is begun after that."""
    module, calls = sys.modules["schedsim.plans.maximize"], []

    def interrupted(*arguments, **options):
        calls.append(1)
        plan = schedsim.api.try_plan(*arguments, **options)
        return dataclasses.replace(plan, search=SearchRecord(ended_by="interrupt"))

    monkeypatch.setattr(module, "try_plan", interrupted)
    with pytest.raises(KeyboardInterrupt):
        schedsim.maximize(scaled, 300)
    assert len(calls) == 1


@pytest.mark.parametrize("rules", [{"keep": ["*"]}, {"recompute": ["s*"]}, {"keep": ["s1"]}])
def test_rules_of_ops_hold_at_every_size(rules):
    """The largest is the one that planning every size by these rules finds."""
    found = schedsim.maximize(scaled, 400, **rules)
    fits = []
    for size in range(1, 20):
        try:
            schedsim.plan(scaled(size), 400, **rules)
        except InfeasibleBudgetError:
            continue
        fits.append(size)
    assert found.largest.size == max(fits)
    assert max(fits) < 19


def recorded(batch: int) -> schedsim.Chain:
    """Eight stages with recorded requests of some MiB, which the allocator puts in segments."""
    size, num = batch * (3 * 2**20 + 12345), 8
    holders: list[str] = []
    for i in range(num):
        holders += [f"a{i + 1}", f"r{i + 1}", f"d{i}" if i else ""]
    records = {"loss": (3 * num,)}
    for i in range(num):
        out, saved, gradient = range(3 * i, 3 * i + 3)
        records |= {f"F{i}": (out,), f"F{i}+": (saved, out), f"B{i}": (gradient,)}
    step = RecordedStep((), (size, 2 * size, size) * num + (size,), (*holders, f"d{num}"), records)
    stages = [schedsim.Stage(f"s{i}", 1 + i / 8, 2.0, size, 3 * size) for i in range(num)]
    return schedsim.Chain("recorded", size, tuple(stages), recorded=step)


@pytest.mark.slow
def test_sizes_of_a_recorded_step_are_planned_well_at_the_end():
    """The first plan that fits tells that a size fits; the largest is planned like a single one."""
    budget = 170 * 2**20
    found = schedsim.maximize(recorded, budget, max_size=6)
    alone = schedsim.plan(recorded(6), budget)
    first = schedsim.plan(recorded(6), budget, allocator_options={"any_plan": True})
    assert found.largest.size == 6
    assert found.largest.plan.makespan_s == alone.makespan_s < first.makespan_s
    assert found.largest.plan.setting.allocator == alone.setting.allocator
    assert found.fastest.rate >= 6 / alone.makespan_s

"""The least budget that a planner names is accepted when given; a proven least is the least."""

from __future__ import annotations

import inspect
from dataclasses import fields, replace

import numpy as np
import pytest
from chains import random_chain
from hypothesis import given, settings
from hypothesis import strategies as st
from schedsim.algorithms import PLANNERS
from tiers import examples, slow_where
from training_graphs import random_training_graph

import schedsim
from schedsim import Graph, Op, Schedule, simulate
from schedsim.api import try_plan
from schedsim.errors import PlannerLimitError, UnsupportedError
from schedsim.plans.least_budget import LeastBudget
from schedsim.plans.scope import ANY_SCHEDULE

SIZES = [field.name for field in fields(schedsim.Stage) if field.name.endswith("_bytes")]
LINK = {"link": "1GB/s"}


def options_of(name: str) -> dict:
    """Options that keep `name` quick."""
    taken = inspect.signature(PLANNERS[name].load()).parameters
    quick = {"time_limit_s": 0.2, "num_threads": 1, "max_moves": 200}
    options = {key: value for key, value in quick.items() if key in taken}
    if PLANNERS[name].needs_link:
        options |= LINK
    return options


def budget_below(rng, workload) -> int:
    """Anything from nothing to a little below the store-all peak."""
    peak = simulate(workload, Schedule.store_all(workload)).peak_bytes
    return int(rng.integers(0, max(1, peak)))


def scaled(chain, factor: int):
    """Every size of `chain` so many times as large: an allocator rounds small ones away."""
    stages = tuple(
        replace(
            stage, **{name: factor * getattr(stage, name) for name in SIZES if getattr(stage, name)}
        )
        for stage in chain.stages
    )
    return replace(
        chain,
        stages=stages,
        input_bytes=factor * chain.input_bytes,
        static_bytes=factor * chain.static_bytes,
        loss_workspace_bytes=factor * chain.loss_workspace_bytes,
    )


def check(workload, budget: int, name: str, **options) -> None:
    """What `name` says of `budget`, and of the least budget that it names."""
    try:
        plan = try_plan(workload, budget, name, **options)
    except (UnsupportedError, PlannerLimitError):
        return
    least = plan.least
    if plan.feasible:
        assert least.found_bytes is None or least.found_bytes <= plan.peak_bytes
        assert least.floor_bytes <= plan.peak_bytes
        return
    if least.found_bytes is not None:
        assert least.found_bytes > budget
        again = try_plan(workload, least.found_bytes, name, **options)
        assert again.feasible, (least, again.least)
        if least.proven:
            assert again.peak_bytes == least.found_bytes


@pytest.mark.parametrize("name", [name for name, info in PLANNERS.items() if "chain" in info.kinds])
@settings(max_examples=examples(12), deadline=None)
@given(seed=st.integers(0, 10**9))
def test_chains(name, seed):
    """Random chains with any budget below store-all's."""
    rng = np.random.default_rng(seed)
    chain = random_chain(rng, int(rng.integers(1, 7)))
    check(chain, budget_below(rng, chain), name, **options_of(name))


@pytest.mark.parametrize("name", [name for name, info in PLANNERS.items() if "graph" in info.kinds])
@settings(max_examples=examples(6), deadline=None)
@given(seed=st.integers(0, 10**9))
def test_graphs(name, seed):
    """Random graphs: shared storage, optional outputs, ops that run once."""
    rng = np.random.default_rng(seed)
    graph = random_training_graph(rng, int(rng.integers(2, 6)))
    check(graph, budget_below(rng, graph), name, **options_of(name))


@pytest.mark.slow
@pytest.mark.parametrize(
    "allocator",
    slow_where(["cuda-caching", "best-fit", "first-fit"], lambda name: name != "best-fit"),
)
@settings(max_examples=examples(15), deadline=None)
@given(seed=st.integers(0, 10**9))
def test_allocators(allocator, seed):
    """The number named is one of reserved bytes, not of live ones."""
    rng = np.random.default_rng(seed)
    chain = scaled(random_chain(rng, int(rng.integers(1, 7))), 10**6)
    for name in ("auto", "periodic", "revolve"):
        check(chain, budget_below(rng, chain), name, allocator=allocator)


@settings(max_examples=examples(15), deadline=None)
@given(seed=st.integers(0, 10**9), free=st.booleans())
def test_a_proof_is_one_for_all_schedules(seed, free):
    """No schedule of the class is below the floor, by looking at all of them."""
    rng = np.random.default_rng(seed)
    graph = random_training_graph(rng, 3)
    budget = budget_below(rng, graph)
    options = {"order": "free" if free else "fixed", "time_limit_s": 0.2}
    plan = try_plan(graph, budget, "local_search", **options)
    best = try_plan(graph, 0, "exhaustive").least
    assert best.proven
    if plan.least.scope == ANY_SCHEDULE or free:
        assert plan.least.floor_bytes <= best.found_bytes
    if plan.least.found_bytes is not None:
        assert plan.least.found_bytes >= best.found_bytes


def test_an_output_that_is_both_optional_and_in_place():
    """f reads x (3 B) and may put y (3 B) in its place: 3 B are enough, and are found."""
    graph = Graph(
        "both",
        (
            Op("f", time_s=1, reads=("x",), writes={"y": 3}, optional=("y",), in_place={"y": "x"}),
            Op("b", phase="backward", time_s=1, reads=("y",)),
        ),
        inputs={"x": 3},
    )
    assert simulate(graph, Schedule.store_all(graph)).peak_bytes == 3
    plan = try_plan(graph, 2, "local_search", time_limit_s=0.2)
    assert plan.least == LeastBudget(3, "f", 3, ANY_SCHEDULE)
    assert try_plan(graph, 3, "local_search", time_limit_s=0.2).feasible


def test_plan_files_keep_the_claim(tmp_path):
    """An infeasible plan says the same after it was saved and loaded."""
    chain = random_chain(np.random.default_rng(0), 4)
    plan = try_plan(chain, 1)
    schedsim.save(plan, tmp_path / "plan.json")
    assert schedsim.load(tmp_path / "plan.json").least == plan.least
    assert plan.least.proven

"""H-Revolve: against a search of everything, revolve, and the published implementation."""

from __future__ import annotations

import numpy as np
import pytest
from chains import random_chain
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from schedsim.algorithms.chains.hrevolve import HRevolve, hrevolve
from schedsim.algorithms.chains.revolve import num_forwards, revolve
from slow_levels import least_time
from tiers import examples

from schedsim import Chain, load, save, simulate
from schedsim.plans.levels import MemoryLevel

COSTS = st.sampled_from([0.0, 0.0, 0.25, 0.5, 1.0, 2.0, 5.0])


def uniform(num_stages, *, forward_s=1.0, backward_s=1.0):
    """A chain of equal stages whose states and bundles are one byte each."""
    ones = [1] * num_stages
    return Chain.from_arrays(
        "uniform",
        1,
        forward_s=[forward_s] * num_stages,
        backward_s=[backward_s] * num_stages,
        output_bytes=ones,
        saved_bytes=ones,
    )


@st.composite
def problems(draw, most_steps=(7, 6, 4), most_slots=(3, 2, 2), free_first=False):
    """Steps, forward, turn, slots, writes, reads: slower levels below faster ones."""
    num_levels = draw(st.integers(1, len(most_steps)))
    slots = [draw(st.integers(1, most_slots[num_levels - 1])) for _ in range(num_levels)]
    writes = sorted(draw(COSTS) for _ in range(num_levels))
    reads = sorted(draw(COSTS) for _ in range(num_levels))
    if free_first:
        writes[0] = reads[0] = 0.0
    num_steps = draw(st.integers(1, most_steps[num_levels - 1]))
    forward = draw(st.sampled_from([0.5, 1.0, 2.0]))
    return num_steps, forward, forward + draw(COSTS), slots, writes, reads


@settings(max_examples=examples(200), deadline=None)
@given(problem=problems())
def test_equals_the_search_of_everything(problem):
    """The times are the least of all schedules, hierarchical or not, on chains this short."""
    assert HRevolve.solve(*problem).time_s == pytest.approx(least_time(*problem), rel=1e-12)


@pytest.mark.parametrize("num_slots", [1, 2, 3, 5, 8])
def test_one_free_level_is_revolve(num_slots):
    for num in (1, 2, 3, 7, 20, 64, 129):
        got = HRevolve.solve(num, 2.0, 5.0, [num_slots], [0], [0]).time_s
        assert got == 2.0 * num_forwards(num, num_slots) + 5.0 * num
        plan = hrevolve(uniform(num), 10**6, num_slots=num_slots)
        other = revolve(uniform(num), 10**6, num_slots=num_slots)
        assert plan.makespan_s == other.makespan_s


@settings(max_examples=examples(100), deadline=None)
@given(problem=problems((30, 25, 20), (5, 5, 5)), level=st.tuples(st.integers(1, 4), COSTS, COSTS))
def test_what_is_added_never_costs(problem, level):
    """A level, a slot, a faster write or read: never slower."""
    num, forward, turn, slots, writes, reads = problem
    time = HRevolve.solve(*problem).time_s
    more = (num, forward, turn, [*slots, level[0]], [*writes, level[1]], [*reads, level[2]])
    assert HRevolve.solve(*more).time_s <= time
    for k in range(len(slots)):
        bigger, cheaper, nearer = list(slots), list(writes), list(reads)
        bigger[k] += 1
        cheaper[k] /= 2
        nearer[k] /= 2
        assert HRevolve.solve(num, forward, turn, bigger, writes, reads).time_s <= time
        assert HRevolve.solve(num, forward, turn, slots, cheaper, reads).time_s <= time
        assert HRevolve.solve(num, forward, turn, slots, writes, nearer).time_s <= time


@settings(max_examples=examples(150), deadline=None)
@given(problem=problems((40, 30, 25), (6, 5, 4)))
def test_the_schedule_takes_the_time_of_the_table(problem):
    """Played by hand: states are where they are read, and levels hold what they can."""
    num, forward, turn, slots, writes, reads = problem
    solved = HRevolve.solve(*problem)
    stored = [set() for _ in slots]
    hand, last, time = 0, num - 1, 0.0
    actions = solved.actions()
    final = {}
    for place, (what, i, level) in enumerate(actions):
        if what == "read":
            final[(level, i)] = place
    for place, (what, i, level) in enumerate(actions):
        if what == "forward":
            assert hand == i < last
            hand, time = i + 1, time + forward
        elif what == "turn":
            assert hand == i == last
            hand, last, time = -1, last - 1, time + turn
        elif what == "write":
            assert hand == i
            stored[level].add(i)
            assert len(stored[level]) <= slots[level]
            time += writes[level]
        else:
            assert i in stored[level]
            hand, time = i, time + reads[level]
            if final[(level, i)] == place:
                stored[level].discard(i)  # its slot is free after the last read
        for k, held in enumerate(stored):
            held -= {s for s in held if final.get((k, s), -1) <= place}
    assert last == -1
    assert time == pytest.approx(solved.time_s, rel=1e-12)


def published():
    return pytest.importorskip("checkpoint_schedules.hrevolve_sequences.hrevolve")


@settings(max_examples=examples(100), deadline=None)
@given(problem=problems((40, 30, 25), (6, 5, 4), free_first=True))
def test_equals_the_published_table_where_the_first_level_is_free(problem):
    """With their two costs in the order of the definition; their l is a chain of l + 1 steps."""
    num, forward, turn, slots, writes, reads = problem
    assume(num > 1)
    _, theirs = published().get_hopt_table(
        num - 1, tuple(slots), tuple(writes), tuple(reads), turn, forward
    )
    assert HRevolve.solve(*problem).time_s == pytest.approx(theirs[-1][num - 1][slots[-1]])


@settings(max_examples=examples(60), deadline=None)
@given(problem=problems((20, 18, 15), (4, 4, 3)))
def test_never_above_the_published_table(problem):
    """Below it only where reading from a lower level beats a write and a read of the first."""
    num, forward, turn, slots, writes, reads = problem
    assume(num > 1)
    _, table = published().get_hopt_table(
        num - 1, tuple(slots), tuple(writes), tuple(reads), turn, forward
    )
    theirs = table[-1][num - 1][slots[-1]]
    ours = HRevolve.solve(*problem).time_s
    assert ours <= theirs + 1e-9
    if ours < theirs - 1e-9:
        assert any(read < writes[0] + reads[0] for read in reads[1:])


@pytest.mark.parametrize("num", [8, 20, 33])
@pytest.mark.parametrize(("forward", "turn"), [(1.0, 1.0), (1.0, 3.0), (1.0, 10.0)])
def test_published_sequences_are_as_fast_where_both_costs_are_equal(num, forward, turn):
    """Where they differ, theirs swap the two, and may take longer."""
    slots, writes, reads = (2, 4), (0.0, 2.0), (0.0, 2.0)
    ours = HRevolve.solve(num, forward, turn, slots, writes, reads).time_s
    sequence = published().hrevolve(num - 1, slots, writes, reads, forward, turn)
    theirs = sum(_cost(line, forward, turn, writes, reads) for line in str_lines(sequence))
    if forward == turn:
        assert ours == pytest.approx(theirs)
    else:
        assert ours <= theirs + 1e-9


def str_lines(sequence):
    """The operations of one of their sequences, nested ones in place."""
    for item in sequence.sequence:
        if hasattr(item, "sequence"):
            yield from str_lines(item)
        else:
            yield item


def _cost(operation, forward, turn, writes, reads):
    """Time in our terms: their backward is our turn, so the forward right before it is free."""
    kind, index = operation.type, operation.index
    if kind == "Backward":
        return turn - forward
    if kind == "Forward":
        return forward * (index[1] - index[0])
    if kind == "Write":
        return writes[index[0]]
    if kind == "Read":
        return reads[index[0]]
    return 0.0


@pytest.mark.parametrize("num", [5, 17, 40])
@pytest.mark.parametrize("copy_s", [0.0, 0.5, 2.0, 30.0])
def test_the_replay_takes_no_longer_than_the_recurrence_says(num, copy_s):
    """All runs together take its time; copies on their own streams overlap."""
    chain = uniform(num, backward_s=2.0)
    levels = [MemoryLevel(3, copy_s, copy_s), MemoryLevel(5, 2 * copy_s, 2 * copy_s)]
    plan = hrevolve(chain, 10**6, num_slots=2, levels=levels)
    simulation = plan.simulate(chain)
    assert simulation.run_s.sum() == pytest.approx(plan.search.figures["synchronous_s"])
    assert plan.makespan_s <= plan.search.figures["synchronous_s"] * (1 + 1e-12)
    assert simulation.peak_by_pool.get("host", 0) <= 3
    assert simulation.peak_by_pool.get("level3", 0) <= 5


def test_a_level_makes_a_plan_faster_or_possible():
    chain = uniform(30)
    budget = simulate(chain, revolve(chain, 10**6, num_slots=3).schedule).peak_bytes
    one = hrevolve(chain, budget)
    two = hrevolve(chain, budget, levels=[(10, 0.5, 0.5)])
    disk = hrevolve(chain, budget, levels=[(30, 0.5, 0.5)])
    assert one.makespan_s == revolve(chain, budget).makespan_s
    assert disk.search.figures["synchronous_s"] <= two.search.figures["synchronous_s"]
    assert two.search.figures["synchronous_s"] < one.makespan_s


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 10**9), num=st.integers(1, 9), copy_s=st.sampled_from([0.0, 1.0, 7.0]))
def test_plans_of_uneven_chains_are_within_the_budget(seed, num, copy_s):
    rng = np.random.default_rng(seed)
    chain = random_chain(rng, num)
    levels = [(int(rng.integers(0, 4)), copy_s, copy_s)]
    high = simulate(chain, revolve(chain, 10**9).schedule).peak_bytes
    budget = int(rng.integers(0, high + 1))
    plan = hrevolve(chain, budget, levels=levels)
    if plan.feasible:
        found = plan.simulate(chain)
        assert found.peak_bytes == plan.peak_bytes <= budget
        assert found.makespan_s == plan.makespan_s
        assert plan.makespan_s >= chain.store_all_s * (1 - 1e-12)
    else:
        assert plan.min_feasible_bytes > budget
        assert hrevolve(chain, plan.min_feasible_bytes, levels=levels).feasible


def test_a_plan_file_replays_on_the_chain(tmp_path):
    chain = uniform(12)
    plan = hrevolve(chain, 6, levels=[(4, 0.5, 0.5), (8, 1.0, 1.0)])
    save(plan, tmp_path / "plan.json")
    again = load(tmp_path / "plan.json")
    assert again.workload.kind == "chain"
    assert again.simulate(chain).makespan_s == plan.makespan_s

"""The requests of a schedule, block by block, of what ops were recorded to ask for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import schedsim
from schedsim.allocators import allocate
from schedsim.allocators.recorded_requests import recorded_requests, saving_runs
from schedsim.dataflow.recorded_step import BARE, RecordedStep

MiB = 1 << 20
STORE_ALL = ("F0", "F1", "loss", "B1", "B0")
REPLAY = ("F0", "F1", "loss", "B1", "F0", "B0")


def recorded(gradient_bytes=()):
    """Two stages: each saves two tensors beside its output, and its backward frees one early."""
    sizes, holders, records = [], [], {}

    def block(size, holder):
        sizes.append(size)
        holders.append(holder)
        return len(sizes) - 1

    for i in range(2):
        plain = block(3 * MiB, f"a{i + 1}")
        work = block(1 * MiB, "")
        records[f"F{i}"] = (work, plain, ~work)
        out, early, late = (
            block(3 * MiB, f"a{i + 1}"),
            block(12 * MiB, f"r{i + 1}"),
            block(2 * MiB, f"r{i + 1}"),
        )
        records[f"F{i}+"] = (early, out, late)
        found = block(3 * MiB, "d1") if i else None
        made = block(5 * MiB, "")
        records[f"B{i}"] = (~early, *(() if found is None else (found,)), made)
    records["loss"] = (block(3 * MiB, "d2"),)
    given = ((4 * MiB, -(14 * MiB), 2 * MiB),)
    return RecordedStep(given, tuple(sizes), tuple(holders), records)


def chain(step=None):
    """The chain that the records are of."""
    stage = {"forward_s": 1.0, "backward_s": 2.0}
    stages = [
        schedsim.Stage(f"s{i}", **stage, output_bytes=3 * MiB, saved_bytes=17 * MiB)
        for i in range(2)
    ]
    made = schedsim.Chain("two", 2 * MiB, tuple(stages), static_bytes=4 * MiB)
    return replace(made, recorded=step)


def balance(requests):
    """Bytes live after each request."""
    items = requests.items
    sizes = requests.item_bytes[np.where(items >= 0, items, ~items)]
    return np.cumsum(np.where(items >= 0, sizes, -sizes))


def test_every_block_is_asked_for_and_given_back_once():
    """In one step and in three, of both schedules; what is resident stays."""
    for names in (STORE_ALL, REPLAY):
        work = chain(recorded())
        simulation = schedsim.simulate(work, schedsim.Schedule.from_names(names))
        for num_steps in (1, 3):
            requests = recorded_requests(simulation, work.recorded, num_steps)
            asked, given = requests.items[requests.items >= 0], ~requests.items[requests.items < 0]
            assert len(set(asked)) == asked.size
            assert len(set(given)) == given.size
            assert set(given) <= set(asked)
            live = balance(requests)
            assert live[-1] == 6 * MiB
            assert live.min() >= 0
            assert requests.num_events == 2 * len(names) * num_steps


def test_the_peak_by_hand():
    """Store-all: 6 resident, two bundles of 14 and two outputs of 3, the loss's gradient of 3."""
    work = chain(recorded())
    simulation = schedsim.simulate(work, schedsim.Schedule.from_names(STORE_ALL))
    assert balance(recorded_requests(simulation, work.recorded)).max() == 43 * MiB
    # Replayed: its own bundle and output, the gradients of a1 and of the parameters of stage 1.
    simulation = schedsim.simulate(work, schedsim.Schedule.from_names(REPLAY))
    assert balance(recorded_requests(simulation, work.recorded)).max() == 31 * MiB


def test_an_allocator_is_given_what_was_recorded():
    """A gap between what is resident takes a tensor that fits; without a record, one block each."""
    schedule = schedsim.Schedule.from_names(STORE_ALL)
    coarse = allocate(schedsim.simulate(chain(), schedule))
    fine = allocate(schedsim.simulate(chain(recorded()), schedule))
    assert fine.bound_bytes == 43 * MiB
    assert coarse.bound_bytes != fine.bound_bytes
    assert fine.requests.items.size > coarse.requests.items.size
    assert fine.peak_reserved_bytes == 60 * MiB  # the 20 that were there, and two of that size


def test_a_segment_is_as_large_as_it_was():
    """A block of 12 MiB in one of 40 MiB: what fits beside it takes no other."""
    schedule = schedsim.Schedule.from_names(STORE_ALL)
    for given, most in ((((-(28 * MiB), 12 * MiB),), 40), (((12 * MiB,),), 12)):
        step = RecordedStep(given, (20 * MiB,), ("a1",), {"F0+": (0,)})
        found = allocate(schedsim.simulate(replace(chain(step), static_bytes=0), schedule))
        assert found.peak_reserved_bytes == (most if most == 40 else 32) * MiB


def test_requested_bytes_are_those_of_tensors_and_not_of_the_blocks_around_them():
    """Static bytes lie in a block of 12 MiB, 1 MiB larger: the bound is the simulated peak."""
    step = replace(recorded(), resident_segments=((12 * MiB,),))
    work = replace(chain(step), static_bytes=9 * MiB)  # and 2 MiB of inputs
    simulation = schedsim.simulate(work, schedsim.Schedule.from_names(STORE_ALL))
    found = allocate(simulation)
    assert found.requests.rounding_bytes == MiB
    rounded = balance(found.requests)
    assert found.bound_bytes == rounded.max() - MiB
    assert found.requested_bytes.max() <= found.bound_bytes
    assert found.peak_allocated_bytes == rounded.max()


def test_what_the_end_of_a_step_makes_stays():
    """State of an optimizer is made in the first step; gradients are given back in each."""
    step = recorded()
    num = len(step.block_bytes)
    made = [b for name in ("B1", "B0") for b in step.records[name] if b >= 0]
    made = [b for b in made if not step.holders[b]]
    ends = (num, *(~b for b in made))
    step = replace(
        step,
        block_bytes=(*step.block_bytes, 7 * MiB, 9 * MiB),
        holders=(*step.holders, "", ""),
        first_end=ends,
        later_end=(num + 1, ~(num + 1), *(~b for b in made)),
    )
    work = chain(step)
    simulation = schedsim.simulate(work, schedsim.Schedule.from_names(STORE_ALL))
    live = balance(recorded_requests(simulation, step, 3))
    assert live[-1] == 13 * MiB


def test_the_last_run_before_its_backward_saves():
    assert saving_runs(REPLAY) == {1, 4}
    assert saving_runs(STORE_ALL) == {0, 1}


def test_a_recorded_workload_is_bounded_by_what_is_reserved():
    """By default; exact bytes where they are asked for."""
    work = chain(recorded())
    peak = schedsim.simulate(work, schedsim.Schedule.from_names(STORE_ALL)).peak_bytes
    exact = schedsim.plan(work, peak, allocator="exact")
    assert exact.setting.allocator is None
    plan = schedsim.plan(work, 60 * MiB)
    assert plan.setting.allocator.name == "cuda-caching"
    assert plan.setting.allocator.reserved_bytes <= 60 * MiB
    assert schedsim.plan(chain(), 60 * MiB).setting.allocator is None


def test_a_segment_that_grows_is_as_large_as_what_lies_in_it():
    """Its free pages are given back one by one, so that none are asked for first."""
    given = {"allocator_options": {"expandable_segments": True}}
    step = RecordedStep(((12 * MiB, -(28 * MiB), 12 * MiB),), (), (), {}, **given)
    schedule = schedsim.Schedule.from_names(STORE_ALL)
    simulation = schedsim.simulate(replace(chain(step), static_bytes=0), schedule)
    items = recorded_requests(simulation, step).item_bytes.tolist()
    assert items == [12 * MiB, 28 * MiB, 12 * MiB]


def in_place_graph():
    """Two parts of a sum, which is made in place of the first and read by the last op."""
    ops = (
        schedsim.Op("a", reads=("x",), writes={"ta": 4 * MiB}),
        schedsim.Op("b", reads=("x",), writes={"tb": 4 * MiB}),
        schedsim.Op("sum", reads=("ta", "tb"), writes={"ts": 4 * MiB}, in_place={"ts": "ta"}),
        schedsim.Op("end", reads=("ts",), writes={"te": 2 * MiB}),
    )
    records = {"a": (0,), "b": (1,), "sum": (2,), "end": (3,)}
    sizes = (4 * MiB, 4 * MiB, 4 * MiB, 2 * MiB)
    step = RecordedStep((), sizes, ("ta", "tb", "ts", "te"), records)
    return schedsim.Graph("sums", ops, inputs={"x": MiB}, results=("te", "x"), recorded=step)


def test_a_sum_in_place_takes_the_block_of_its_part():
    """And where a later run still reads the part, it has a block of its own."""
    graph = in_place_graph()
    schedule = schedsim.Schedule.store_all(graph)
    simulation = schedsim.simulate(graph, schedule)
    requests = recorded_requests(simulation, graph.recorded, 2)
    assert balance(requests).max() == simulation.peak_bytes == 9 * MiB
    assert balance(requests)[-1] == MiB
    reads = (*graph.ops[3].reads, "ta")
    ops = (*graph.ops[:3], replace(graph.ops[3], reads=reads))
    kept = replace(graph, ops=ops)
    simulation = schedsim.simulate(kept, schedule)
    live = balance(recorded_requests(simulation, graph.recorded))
    assert live.max() == simulation.peak_bytes == 13 * MiB


def test_a_run_without_optional_outputs_has_a_record_of_its_own():
    """Where nobody reads them."""
    ops = (
        schedsim.Op("norm", reads=("x",), writes={"y": 2 * MiB, "m": MiB}, optional=("m",)),
        schedsim.Op("use", reads=("y",), writes={"z": MiB}),
    )
    records = {"norm": (0, 1), f"norm{BARE}": (2,), "use": (3,)}
    step = RecordedStep((), (2 * MiB, MiB, 2 * MiB, MiB), ("y", "m", "y", "z"), records)
    for reads, most in ((("y",), 3), (("y", "m"), 4)):
        graph = schedsim.Graph(
            "norms",
            (ops[0], replace(ops[1], reads=reads)),
            inputs={"x": 0},
            results=("z",),
            recorded=step,
        )
        simulation = schedsim.simulate(graph, schedsim.Schedule.store_all(graph))
        found = recorded_requests(simulation, step)
        assert balance(found).max() == simulation.peak_bytes == most * MiB


def test_state_that_the_first_step_makes_is_not_there_before_it():
    """The workload counts it throughout; the allocator is asked for it at the step's end."""
    step = recorded()
    num = len(step.block_bytes)
    step = replace(
        step,
        block_bytes=(*step.block_bytes, 7 * MiB, 2 * MiB),
        holders=(*step.holders, "", ""),
        first_end=(num, num + 1, ~(num + 1)),
    )
    assert step.made_at_end_bytes == 7 * MiB
    work = replace(chain(step), static_bytes=11 * MiB)
    simulation = schedsim.simulate(work, schedsim.Schedule.from_names(STORE_ALL))
    requests = recorded_requests(simulation, step)
    live = balance(requests)
    assert live[np.searchsorted(requests.events, 0) - 1] == 6 * MiB
    assert live[-1] == 13 * MiB


def test_a_plan_that_needs_nothing_returned_goes_first():
    """What it reserves on a device with room is within the budget, or it says what it waits for."""
    work = chain(recorded())
    found = set()
    for budget in range(20, 80, 4):
        plan = schedsim.api.try_plan(work, budget * MiB)
        if plan.schedule is None:
            continue
        room = allocate(schedsim.simulate(work, plan.schedule), num_steps=3).peak_reserved_bytes
        told = plan.setting.allocator
        assert told.reserved_bytes <= budget * MiB
        assert (room <= budget * MiB) == (told.num_emptied == 0)
        found.add(told.num_emptied > 0)
    assert False in found


def test_probes_find_a_larger_inner_budget_where_what_is_reserved_jumps():
    """For a recorded step the fastest budget tried is taken, not the last of the halving."""
    work = chain(recorded())
    for budget in (50, 60, 70):
        plan = schedsim.plan(work, budget * MiB)
        for inner in range(20, budget + 1):
            other = schedsim.api.try_plan(work, inner * MiB, allocator="exact")
            if other.schedule is None or other.makespan_s >= plan.makespan_s:
                continue
            simulation = schedsim.simulate(work, other.schedule)
            assert allocate(simulation, num_steps=3).peak_reserved_bytes > budget * MiB


def test_gradients_that_the_loop_keeps_are_made_once():
    """In the first step, in the places of its backwards; later steps ask for a moment's bytes."""
    step = recorded()
    num = len(step.block_bytes)
    sizes, holders = [*step.block_bytes], [*step.holders]
    later = dict(step.records)
    for i in range(2):  # what is added to the gradient is given back at once
        sizes.append(5 * MiB)
        holders.append("")
        later[f"B{i}"] = (*step.records[f"B{i}"][:-1], num + i, ~(num + i))
    kept = replace(
        step,
        block_bytes=tuple(sizes),
        holders=tuple(holders),
        records=later,
        first_records=step.records,
    )
    assert kept.kept_bytes == 10 * MiB
    work = replace(chain(kept), static_bytes=14 * MiB)
    simulation = schedsim.simulate(work, schedsim.Schedule.from_names(REPLAY))
    for num_steps in (1, 3):
        requests = recorded_requests(simulation, kept, num_steps)
        assert requests.rounding_bytes == 0
        assert balance(requests)[-1] == (6 + 10) * MiB
    first = recorded_requests(simulation, kept, 1)
    end = first.items.size
    later_items = requests.items[end:]
    asked = [requests.item_bytes[i] for i in later_items if i >= 0]
    assert asked.count(5 * MiB) == 4  # two backwards in each of two later steps
    assert balance(requests)[end:].min() >= 16 * MiB


def test_a_repeated_backward_makes_a_kept_gradient_in_the_run_that_is_read():
    """Its run for the other gradient gives the first one back, in the first step too."""
    op = schedsim.Op
    graph = schedsim.Graph(
        "twice",
        (
            op("back", reads=("x",), writes={"dx": 2 * MiB, "dw": 5 * MiB}),
            op("go on", reads=("dx",), writes={"y": 7 * MiB}),
            op("sum", reads=("y", "dw"), writes={"z": MiB}),
        ),
        inputs={"x": 0},
        static_bytes=5 * MiB,
        results=("z",),
    )
    step = RecordedStep(
        (),
        (2 * MiB, 5 * MiB, 7 * MiB, MiB, 5 * MiB),
        ("dx", "dw", "y", "z", ""),
        {"back": (0, 1), "go on": (2,), "sum": (3,)},
        first_records={"back": (0, 4), "go on": (2,), "sum": (3,)},
        first_blocks={"dw": (4,)},
    )
    schedule = schedsim.Schedule.from_names(["back", "go on", "back", "sum"])
    found = recorded_requests(schedsim.simulate(graph, schedule), step, 2)
    live = [int(bytes_) // MiB for bytes_ in balance(found)]
    first = [2, 7, 2, 9, 7, 9, 14, 12, 13, 6, 5]
    later = [7, 12, 7, 14, 12, 14, 19, 17, 18, 11, 6, 5]
    assert live == [*first, *later]


def test_growing_segments_are_resident_with_their_gaps():
    """By hand: 60 MiB do not fit into 40 MiB of free addresses between two resident blocks.

    The first page of 20 MiB and the third hold resident blocks, the second is given back; behind
    the second block 12 MiB are left of its page, and three pages more are mapped.
    """
    step = RecordedStep(
        ((4 * MiB, *[-(8 * MiB)] * 5, 4 * MiB),),
        (60 * MiB, 30 * MiB),
        ("e", "f"),
        {"F": (0,), "G": (1,)},
        allocator_options={"expandable_segments": True},
    )
    for name, tensor, size, expected in (("F", "e", 60, 100), ("G", "f", 30, 60)):
        op = schedsim.Op(name, reads=("x",), writes={tensor: size * MiB}, time_s=1.0)
        graph = schedsim.Graph(
            "one", (op,), inputs={"x": 8 * MiB}, results=(tensor,), recorded=step
        )
        simulation = schedsim.simulate(graph, schedsim.Schedule.from_names([name]))
        found = allocate(simulation, expandable_segments=True)
        assert found.peak_reserved_bytes == expected * MiB
        assert found.peak_allocated_bytes == found.bound_bytes == (8 + size) * MiB
        assert allocate(simulation, expandable_segments=True, capacity_bytes=expected * MiB).fits
        assert not allocate(
            simulation, expandable_segments=True, capacity_bytes=expected * MiB - 1
        ).fits

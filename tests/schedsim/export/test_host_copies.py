"""Tensors in host memory between forward and backward, against a replay run by run."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_exports import OPS
from tiers import examples

import schedsim
from schedsim import Chain, Schedule, UnsupportedError, simulate
from schedsim.api import try_plan
from schedsim.export import TARGETS, export
from schedsim.export.host_copies import with_host_copies
from schedsim.export.segments import held_inputs, segment_schedule
from schedsim.plans.offloading import Offloading

LINK = Offloading.over("4B/s", latency_s=0.25)
OFFLOADING = [name for name, one in TARGETS.items() if getattr(one.load(), "OFFLOADS", False)]


def slowly(workload, names):
    """(peak of the device, seconds, bytes on the host): one run after the other, tensor by tensor.

    A copy out ends its tensor on the device; a copy back begins it again.
    """
    graph = workload.graph
    ops = {op.name: op for op in graph.ops}
    sizes = dict(graph.inputs) | {t: n for op in graph.ops for t, n in op.writes.items()}
    needed = []  # tensors read from each run on, until they are made again
    later: set[str] = set()
    for name in reversed(names):
        needed.append(set(later))
        if name.startswith("d2h:"):
            later = (later - {name[4:]}) | {name[4:]}
        elif name.startswith("h2d:"):
            later.discard(name[4:])
        else:
            later -= set(ops[name].writes)
            later |= set(ops[name].reads)
    needed.reverse()
    live, peak, seconds, host, most = set(graph.inputs), 0, 0.0, 0, 0
    for name, after in zip(names, needed, strict=True):
        tensor = name[4:]
        if name.startswith("d2h:"):
            assert tensor in live
            live.discard(tensor)
            host += sizes[tensor]
            seconds += 0.25 + sizes[tensor] / 4
        elif name.startswith("h2d:"):
            live.add(tensor)
            host -= sizes[tensor]
            seconds += 0.25 + sizes[tensor] / 4
        else:
            op = ops[name]
            assert set(op.reads) <= live, name
            live |= set(op.writes)
            used = sum(sizes[t] for t in live) + op.workspace_bytes + graph.static_bytes
            peak, seconds = max(peak, used), seconds + op.time_s
            live &= after
        most = max(most, host)
    return peak, seconds, most


@st.composite
def chains_with_segments(draw):
    """A chain of two to seven stages, and ranges of them."""
    num = draw(st.integers(2, 7))
    sizes = st.lists(st.integers(1, 9), min_size=num, max_size=num)
    outputs = draw(sizes)
    chain = Chain.from_arrays(
        "drawn",
        draw(st.integers(1, 9)),
        forward_s=draw(sizes),
        backward_s=draw(sizes),
        output_bytes=outputs,
        saved_bytes=[a + b for a, b in zip(outputs, draw(sizes), strict=True)],
    )
    cuts = sorted(draw(st.sets(st.integers(0, num), min_size=2)))
    segments = tuple((a, b) for a, b in pairwise(cuts) if draw(st.booleans()))
    return chain, segments


@settings(max_examples=examples(150), deadline=None)
@given(chains_with_segments(), st.data())
def test_it_costs_what_a_slow_replay_says(drawn, data):
    """Peak, seconds and host memory; a step's own input may go there too."""
    chain, segments = drawn
    schedule = segment_schedule(chain, segments)
    inputs = held_inputs(segments)
    chosen = [one for one in inputs if data.draw(st.booleans())]
    found = with_host_copies(chain, schedule, chosen, LINK)
    assert set(found.tensors) <= set(chosen)
    peak, seconds, host = slowly(chain, found.schedule.names)
    assert (found.peak_bytes, found.host_bytes) == (peak, host)
    assert found.makespan_s == pytest.approx(seconds)
    plain = [name for name in found.schedule.names if name[:4] not in ("d2h:", "h2d:")]
    assert plain == schedule.names


def test_every_input_of_a_checkpointed_layer_is_copied():
    """None is made again before it is read, and the peak falls by what is away then."""
    chain = Chain.from_arrays(
        "five", 10, forward_s=[1] * 5, backward_s=[2] * 5, output_bytes=[10] * 5,
        saved_bytes=[50] * 5,
    )  # fmt: skip
    schedule = segment_schedule(chain, tuple((i, i + 1) for i in range(5)))
    found = with_host_copies(chain, schedule, ["a1", "a2", "a3", "a4"], LINK)
    assert found.tensors == ("a1", "a2", "a3", "a4")
    assert found.host_bytes == 40
    assert simulate(chain, schedule).peak_bytes - found.peak_bytes == 30  # all but the last
    assert found.makespan_s == 5 * 3 + 5 + 8 * (0.25 + 2.5)


def test_what_nobody_reads_again_stays():
    """A tensor that the backward makes anew, or does not read, is no use on the host."""
    chain = Chain.from_arrays(
        "two", 4, forward_s=[1] * 2, backward_s=[1] * 2, output_bytes=[4] * 2, saved_bytes=[8] * 2
    )
    schedule = Schedule.from_names(["F0", "F1", "loss", "F0", "F1", "B1", "F0", "B0"])
    assert with_host_copies(chain, schedule, ["a1"], LINK).tensors == ()


CHAIN = Chain.from_arrays(
    "layers",
    1000,
    forward_s=[1e-3] * 10,
    backward_s=[2e-3] * 10,
    output_bytes=[1000] * 10,
    saved_bytes=[9000] * 10,
)


@cache
def tightest(of_ops=False):
    """A plan with copies at the least budget found for one."""
    workload = OPS if of_ops else CHAIN
    link = "100GB/s" if of_ops else "1GB/s"
    least = try_plan(workload, 1, link=link, effort=0.1).min_feasible_bytes
    for share in (1, 1.02, 1.1, 1.2, 1.4):
        plan = schedsim.plan(workload, int(share * least), link=link, effort=0.1)
        if plan.setting.copies_anything(plan.schedule):
            break
    return workload, plan


@pytest.mark.parametrize("target", OFFLOADING)
def test_targets_that_offload_take_plans_that_do(target):
    """And say what they hold where, replayed; all of them where memory is scarce."""
    workload, plan = tightest("chain" not in TARGETS[target].kinds)
    exported = export(workload, plan, target)
    if not exported.host_bytes:  # Megatron has no such setting for whole layers
        assert target in ("megatron", "nemo")
        return
    names = exported.schedule.names
    assert any(name.startswith("d2h:") for name in names)
    peak, _, host = slowly(workload, names)
    assert (peak, host) == (exported.peak_bytes, exported.host_bytes)
    assert exported.to_dict()["host_bytes"] == exported.host_bytes


@pytest.mark.parametrize("target", sorted(set(TARGETS) - set(OFFLOADING)))
def test_others_refuse_them_and_name_those(target):
    """By the copy, with every target that takes one in such a workload."""
    workload, plan = tightest("chain" not in TARGETS[target].kinds)
    with pytest.raises(UnsupportedError, match="copies nothing to the host") as caught:
        export(workload, plan, target)
    named = caught.value.hint.partition("export to ")[2].split(", ")
    assert named == [name for name in OFFLOADING if workload.kind in TARGETS[name].kinds]


def test_plans_without_a_link_are_exported_without_copies():
    """An export never moves to the host what the plan did not ask a link for."""
    plan = schedsim.plan(CHAIN, schedsim.pareto(CHAIN).points[0].budget_bytes)
    for target in OFFLOADING:
        if "chain" in TARGETS[target].kinds:
            assert export(CHAIN, plan, target).host_bytes == 0


@pytest.mark.slow
def test_the_host_may_be_too_small():
    """What is over its memory is no choice."""
    assert export(*tightest(), "transformers").host_bytes > 3000
    narrow = schedsim.plan(CHAIN, "30%", link="1GB/s", host_bytes=3000, effort=0.1)
    assert export(CHAIN, narrow, "transformers").host_bytes <= 3000

"""A program of groups computes what the program computes, in every schedule."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from schedsim import Schedule, simulate
from schedsim.api import try_plan
from schedsim.errors import InvalidScheduleError

torch = pytest.importorskip("torch")

from fused_steps import assert_close, captured_step, convolutional, gated, left_by, turned  # noqa: E402
from schedsim.validation.capture.to_graph import op_calls, to_graph  # noqa: E402
from schedsim.validation.compiled.fuse import fused  # noqa: E402
from schedsim.validation.compiled.group import FusedGroup, Groups  # noqa: E402
from schedsim.validation.compiled.group_sizes import GroupSize  # noqa: E402
from schedsim.validation.costs.lazy_bits import lazy_bits  # noqa: E402


def grouped(captured, size=GroupSize.LARGE):
    groups = Groups()
    program = fused(captured.program, groups, size=size)
    graph = to_graph(program, "fused", captured.graph.static_bytes)
    return replace(captured, program=program, graph=graph), groups


def peak(graph, schedule):
    return simulate(graph, schedule).peak_bytes


@pytest.mark.parametrize("make", [gated, convolutional, turned])
def test_groups_compute_the_plain_step(uncompiled, make):
    """Loss, gradients and buffers, recomputing nothing."""
    model, inputs, loss = make()
    captured, _ = grouped(captured_step(model, inputs, loss))
    module = captured.module(Schedule.store_all(captured.graph))
    expected = left_by(lambda x, t: loss(model(x), t), model, inputs)
    assert_close(left_by(module, model, inputs), expected)


def test_what_runs_once_runs_in_its_half_in_any_order():
    """Running statistics are those of the forward for whoever reads them in front of a backward."""
    captured, _ = grouped(captured_step(*convolutional()))
    program, graph = captured.program, captured.graph
    ops = op_calls(program)
    seed = ops.index(program.seed)
    updates = [k for k in range(seed) if program.calls[ops[k]].once]
    assert len(updates) > 2
    for k in updates:
        runs = [*range(k), *range(k + 1, seed + 1), k, *range(seed + 1, len(ops))]
        with pytest.raises(InvalidScheduleError):
            simulate(graph, Schedule(graph.op_names, runs))


@pytest.mark.slow
@pytest.mark.parametrize("make", [gated, convolutional])
def test_repeated_groups_compute_the_same(uncompiled, make):
    """Plans of small budgets; statistics are updated once all the same."""
    model, inputs, loss = make()
    captured, _ = grouped(captured_step(model, inputs, loss))
    most = peak(captured.graph, Schedule.store_all(captured.graph))
    expected = left_by(lambda x, t: loss(model(x), t), model, inputs)
    tried = 0
    for share in (0.98, 0.95, 0.9, 0.8):
        found = try_plan(captured.graph, int(share * most), "auto", effort=0.5)
        if found.schedule is not None:
            module = captured.module(found.schedule)
            assert_close(left_by(module, model, inputs), expected)
            tried += len(found.schedule.names) > captured.graph.num_ops
    assert tried


@pytest.mark.slow
def test_a_group_has_no_inner_bytes(uncompiled):
    """The step of groups needs less than the step of ops: chains hold nothing in between."""
    captured = captured_step(*gated())
    found, _ = grouped(captured)
    before = peak(captured.graph, Schedule.store_all(captured.graph))
    assert peak(found.graph, Schedule.store_all(found.graph)) < before


@pytest.mark.slow
def test_equal_layers_are_one_group_each():
    """Four layers take no more distinct code than three."""
    _, three = grouped(captured_step(*gated(3)))
    captured, four = grouped(captured_step(*gated(4)))
    assert set(three.known) == set(four.known)
    places = [c for c in captured.program.calls if isinstance(c.target, FusedGroup)]
    assert len(places) > len(four.known)


@pytest.mark.slow
def test_every_tensor_is_made_before_it_is_read():
    """Calls stand in an order that data allows, views too."""
    random.seed(0)
    for make in (gated, convolutional):
        program = fused(captured_step(*make()).program, Groups())
        made = set()
        from schedsim.validation.capture.program import refs

        for i, call in enumerate(program.calls):
            for v in refs((call.args, call.kwargs)):
                assert program.values[v].call in (-1, *made)
            made.add(i)
            for v in call.outputs:
                assert v < 0 or program.values[v].call == i


def test_complex_numbers_are_in_no_group():
    """Inductor makes no loop of them: each op would be a kernel, with a tensor that must count."""
    captured, groups = grouped(captured_step(*turned()))
    layouts = [layout for group in groups.known.values() for layout in group.inputs]
    assert layouts
    assert not any(dtype.is_complex for _, _, dtype, _ in layouts)
    complex_kernels = (c for c in captured.program.calls if c.name.rpartition(".")[2] == "abs")
    assert all(not isinstance(call.target, FusedGroup) for call in complex_kernels)


def test_groups_read_no_view_that_is_negated_later():
    """Compiled code reads memory: a gradient's sign was wrong, in silence."""
    captured, _ = grouped(captured_step(*turned()))
    program = captured.program
    lazy = [v for v in range(len(program.values)) if any(lazy_bits(program, v))]
    assert lazy
    for call in program.calls:
        if isinstance(call.target, FusedGroup):
            assert not {ref.value for ref in call.args} & set(lazy)


@pytest.mark.parametrize("size", [GroupSize.MEDIUM, GroupSize.SMALL])
def test_a_comparison_alone_is_a_kernel(uncompiled, size):
    """As the mask of a ReLU in small groups: inductor's loop takes 24 times as long on a CPU."""
    model, inputs, loss = convolutional()
    captured, _ = grouped(captured_step(model, inputs, loss), size)
    program = captured.program
    makers = [
        call.target
        for call in program.calls
        for v in call.outputs
        if program.values[v].dtype is torch.bool and not call.is_view
    ]
    assert makers == [torch.ops.aten.le.Scalar]
    module = captured.module(Schedule.store_all(captured.graph))
    expected = left_by(lambda x, t: loss(model(x), t), model, inputs)
    assert_close(left_by(module, model, inputs), expected)

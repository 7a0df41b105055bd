"""Repeats moved beside groups that read what they read: a legal order, and no higher peak."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from fused_steps import assert_close, captured_step, gated, left_by  # noqa: E402
from schedsim.validation.capture.to_graph import op_calls, to_graph  # noqa: E402
from schedsim.validation.compiled.fuse import fused  # noqa: E402
from schedsim.validation.compiled.group import FusedGroup, Groups  # noqa: E402
from schedsim.validation.compiled.joining import join_runs  # noqa: E402
from schedsim.validation.compiled.neighbours import beside_their_like  # noqa: E402
from torch import nn  # noqa: E402

from schedsim import Schedule, plan, simulate  # noqa: E402


def two_layers():
    torch.manual_seed(0)
    layers = [nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)]
    model = nn.Sequential(*layers, nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))
    return model, (torch.randn(16, 8), torch.randn(16, 8)), nn.functional.mse_loss


def fused_step(make):
    model, inputs, loss = make()
    captured, groups = captured_step(model, inputs, loss), Groups()
    program = fused(captured.program, groups)
    graph = to_graph(program, "fused", captured.graph.static_bytes)
    return model, inputs, loss, replace(captured, program=program, graph=graph), groups


def repeated_activation(captured):
    """Runs that make the first GELU again, right before the product that needs it.

    Returned with the position of the repeat, and with the op of the GELU's gradient.
    """
    program, graph = captured.program, captured.graph
    calls = [program.calls[i] for i in op_calls(program)]
    made = [{program.values[v].storage for v in call.outputs if v >= 0} for call in calls]
    fusible = [isinstance(call.target, FusedGroup) for call in calls]
    seed = next(i for i, index in enumerate(op_calls(program)) if index == program.seed)
    for op in range(seed):
        read = set(program.base_reads(calls[op]))
        needing = [
            i for i in range(seed, len(calls)) if made[op] & set(program.base_reads(calls[i]))
        ]
        like = [
            i
            for i in range(seed, len(calls))
            if fusible[i] and read & set(program.base_reads(calls[i]))
        ]
        if fusible[op] and needing and like and needing[0] < like[0]:
            return [*range(needing[0]), op, *range(needing[0], graph.num_ops)], needing[0], like[0]
    raise AssertionError("no activation is read before its gradient is made")


def test_a_repeated_activation_moves_to_its_gradient(uncompiled):
    captured = fused_step(two_layers)[3]
    runs, at, like = repeated_activation(captured)
    needing = runs[at + 1]
    found = beside_their_like(captured.program, captured.graph, runs)
    again = [k for k, run in enumerate(found) if run == runs[at]][-1]
    assert found[again + 1] == like
    assert found.index(needing) > again + 1
    assert Counter(found) == Counter(runs)
    schedules = [Schedule(captured.graph.op_names, order) for order in (runs, found)]
    before, after = (simulate(captured.graph, schedule) for schedule in schedules)
    assert after.peak_bytes <= before.peak_bytes


def test_without_repeats_nothing_moves(uncompiled):
    captured = fused_step(two_layers)[3]
    runs = list(range(captured.graph.num_ops))
    assert beside_their_like(captured.program, captured.graph, runs) == runs


def test_a_move_that_raises_the_peak_is_left_out(uncompiled, monkeypatch):
    captured = fused_step(two_layers)[3]
    runs, *_ = repeated_activation(captured)
    from schedsim.validation.compiled import neighbours

    real = neighbours._peak_bytes
    monkeypatch.setattr(
        neighbours, "_peak_bytes", lambda graph, order: real(graph, order) + (order != runs)
    )
    assert beside_their_like(captured.program, captured.graph, runs) == runs


def test_neighbours_that_read_one_tensor_are_joined(uncompiled):
    """The error function of a GELU and of its gradient is computed once."""
    captured, groups = fused_step(two_layers)[3:]
    runs, at, like = repeated_activation(captured)
    found = beside_their_like(captured.program, captured.graph, runs)
    joined = join_runs(
        captured.program,
        found,
        10**9,
        groups,
        lambda program, call: (
            0.0 if "+" in call.name[1:] and call not in captured.program.calls else 1.0,
            0,
        ),
    )
    assert any(
        (runs[at], like) == part[i : i + 2] for part in joined.parts.values() for i in range(3)
    )


@pytest.mark.slow
@pytest.mark.parametrize("make", [gated, two_layers])
@pytest.mark.parametrize("share", [0.9, 0.8, 0.7])
def test_steps_in_the_new_order_are_the_plain_step(uncompiled, make, share):
    model, inputs, loss, captured, _ = fused_step(make)
    graph = captured.graph
    most = simulate(graph, Schedule.store_all(graph)).peak_bytes
    budget = graph.static_bytes + int(share * (most - graph.static_bytes))
    found = plan(graph, budget, effort=0.5)
    runs = [int(run) for run in found.schedule.bind(graph)]
    moved = Schedule(graph.op_names, beside_their_like(captured.program, graph, runs))
    assert simulate(graph, moved).peak_bytes <= found.peak_bytes
    expected = left_by(lambda x, t: loss(model(x), t), model, inputs)
    assert_close(left_by(captured.module(moved), model, inputs), expected)

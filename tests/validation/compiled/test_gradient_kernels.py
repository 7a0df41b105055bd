"""A convolution's backward is two kernels, whose order is free and whose results are the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from fused_steps import captured_step, left_by  # noqa: E402
from schedsim.validation.capture.program import refs  # noqa: E402
from schedsim.validation.capture.to_graph import op_calls, to_graph  # noqa: E402
from schedsim.validation.compiled.fuse import fused  # noqa: E402
from schedsim.validation.compiled.gradient_kernels import split_gradients  # noqa: E402
from schedsim.validation.compiled.group import Groups  # noqa: E402
from schedsim.validation.compiled.joining import join_runs  # noqa: E402
from schedsim.validation.compiled.neighbours import halves_together  # noqa: E402
from torch import nn  # noqa: E402

from schedsim import Schedule, simulate  # noqa: E402
from schedsim.api import try_plan  # noqa: E402

aten = torch.ops.aten

KINDS = {
    "padded": (nn.Conv2d, (8, 8, 3), {"padding": 1}),
    "strided": (nn.Conv2d, (8, 16, 3), {"stride": 2}),  # leaves out a row of 12
    "dilated": (nn.Conv2d, (8, 8, 3), {"dilation": 2, "bias": False}),
    "grouped": (nn.Conv2d, (8, 16, 3), {"groups": 2}),
    "transposed": (nn.ConvTranspose2d, (8, 4, 3), {"stride": 2, "output_padding": 1}),
    "of one dimension": (nn.Conv1d, (8, 8, 5), {"stride": 3, "padding": 1}),
    "of three dimensions": (nn.Conv3d, (8, 8, 2), {"stride": 2}),
}


def between(kind):
    """A step with a convolution of `kind` whose input needs a gradient."""
    torch.manual_seed(0)
    make, sizes, options = KINDS[kind]
    images = {nn.Conv1d: 1, nn.Conv3d: 3}.get(make, 2)
    model = nn.Sequential(nn.Tanh(), make(*sizes, **options), nn.Tanh())
    inputs = (torch.randn(2, 8, *[12] * images, requires_grad=True),)
    return model, inputs, lambda y: y.square().mean()


@pytest.mark.parametrize("kind", KINDS)
def test_results_are_those_of_one_kernel(kind):
    """To the bit, of a step that is otherwise as it was captured."""
    model, inputs, loss = between(kind)
    captured = captured_step(model, inputs, loss)
    program = split_gradients(captured.program)
    assert len(program.calls) == len(captured.program.calls) + 1

    def left(step):
        inputs[0].grad = None
        module = step.module(Schedule.store_all(step.graph))
        return [*left_by(module, model, inputs), inputs[0].grad]

    two = replace(captured, program=program, graph=to_graph(program, "two kernels", 0))
    found, expected = left(two), left(captured)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_the_kernel_for_the_input_does_not_read_the_input():
    """So the input may be free by then; nor does it make the gradient of the weight."""
    captured = captured_step(*between("padded"))
    program = split_gradients(captured.program)
    [weight] = [c for c in program.calls if c.target is aten.convolution_backward.default]
    [_, given] = [c for c in program.calls if c.target is aten.convolution.default]
    assert weight.args[-1] == [False, True, True]
    image = next(v for v in refs(weight.args[1]))
    assert image not in set(refs(given.args))
    assert not {v for v in weight.outputs if v >= 0} & set(given.outputs)


def test_a_kernel_for_the_weight_alone_stays_as_it_is():
    """As of the first convolution, whose input needs no gradient."""
    torch.manual_seed(0)
    inputs = torch.randn(2, 3, 8, 8), torch.randn(2, 4, 6, 6)
    captured = captured_step(nn.Conv2d(3, 4, 3), inputs, nn.functional.mse_loss)
    assert split_gradients(captured.program) is captured.program


def deep():
    """Wide convolutions of few places behind one of many: their weights outweigh their images."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(16, 96, 4, stride=4),
        nn.Tanh(),
        *(layer for _ in range(3) for layer in (nn.Conv2d(96, 96, 3, padding=1), nn.Tanh())),
    )
    return model, (torch.randn(4, 3, 16, 16), torch.randn(4, 96, 4, 4)), nn.functional.mse_loss


def test_a_gradient_of_a_weight_waits_until_there_is_room():
    """No kernel runs twice for that, where one kernel for both gradients has to."""
    captured = captured_step(*deep())
    program = fused(captured.program, Groups())
    graph = to_graph(program, "deep", 0)
    graph = replace(graph, ops=tuple(replace(op, time_s=1.0) for op in graph.ops))
    budget = int(0.97 * simulate(graph, Schedule.store_all(graph)).peak_bytes)
    plan = try_plan(graph, budget, "auto", order="free", effort=0.2)
    assert plan.schedule is not None
    assert len(plan.schedule.names) == graph.num_ops
    assert plan.schedule.names != tuple(graph.op_names)


@pytest.mark.parametrize(("seconds", "scratch", "num"), [(1.9, 0, 2), (2.1, 0, 0), (1.9, 1, 0)])
def test_one_kernel_runs_where_it_is_quicker_and_fits(uncompiled, seconds, scratch, num):
    """In the place of two, one behind the other: of all convolutions but the first."""
    torch.manual_seed(0)
    more = (layer for _ in range(2) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.Tanh()))
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Tanh(), *more)
    inputs, loss = (torch.randn(2, 3, 9, 9), torch.randn(2, 8, 9, 9)), nn.functional.mse_loss
    captured, groups = captured_step(model, inputs, loss), Groups()
    program = fused(captured.program, groups)
    graph = to_graph(program, "deep", 0)
    schedule, both = Schedule.store_all(graph), [True, True, True]
    peak, found = simulate(graph, schedule).peak_bytes, []

    def measured(program, call):
        is_whole = call.target is aten.convolution_backward.default and call.args[-1] == both
        return (seconds, scratch * peak) if is_whole else (1.0, 0)

    def join(graph, runs):
        runs = halves_together(program, graph, runs)
        found.append(join_runs(program, runs, peak, groups, measured))
        return found[-1]

    step = replace(captured, program=program, graph=graph)
    expected = left_by(step.module(schedule), model, inputs)
    made = left_by(replace(step, join=join).module(schedule), model, inputs)
    ops = op_calls(found[0].program)
    calls = [found[0].program.calls[ops[run]] for run in found[0].runs]
    assert sum(call.args[-1:] == (both,) for call in calls) == num
    assert all(torch.equal(a, b) for a, b in zip(made, expected, strict=True))

"""Requests of ops: which are outputs, those of a step, and as CUDA's allocator got them."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.capture import capture  # noqa: E402
from schedsim.validation.dry_cuda import has_times, has_values  # noqa: E402
from schedsim.validation.measure.cuda_requests import RequestEvent  # noqa: E402
from schedsim.validation.models import build_model  # noqa: E402
from schedsim.validation.op_level.recorded_ops import (  # noqa: E402
    OpRequests,
    _assembled,
    _distinct,
    _with_first_step,
    requests_of_op,
    with_requests,
)
from schedsim.validation.steps import MeasuredSteps  # noqa: E402
from schedsim.validation.targets import capture_target, load_target  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim.allocators import allocate  # noqa: E402

CUDA = torch.device("cuda")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def test_outputs_are_told_from_workspaces_by_their_address():
    """A block given back within the op, its address used again; one that stays and is no output."""

    def ask(address, size):
        return RequestEvent("0", True, address, size)

    def free(address):
        return RequestEvent("0", False, address, 0)

    events = [ask(100, 7), free(100), ask(100, 8), free(900), ask(200, 9), ask(300, 5), free(200)]
    found = requests_of_op(events, [100, 0, 100])
    assert found.record == (0, ~0, 1, 2, 3, ~2, ~3)
    assert (found.block_bytes, found.outputs) == ((7, 8, 9, 5), {1: 0})


WORK = 1000


def made_up(captured):
    """Requests of each distinct op: a workspace, then a block of its size for each output."""
    program, found = captured.program, {}
    for key, call, lean in _distinct(program):
        sizes, outputs, record = [WORK], {}, [0]
        num = len(call.outputs) - (len(call.optional) if lean else 0)
        for position, value in enumerate(call.outputs[:num]):
            if value >= 0 and program.storages[program.values[value].storage].kind != "static":
                outputs[len(sizes)] = position
                record.append(len(sizes))
                sizes.append(program.storages[program.values[value].storage].size_bytes)
        found[key] = OpRequests((*record, ~0), tuple(sizes), outputs)
    return found


def test_the_requests_of_a_step_are_those_of_the_simulator():
    """Sums in place and statistics of a batch norm included: the same bytes at their most."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
            self.norm, self.head = nn.BatchNorm2d(4), nn.Linear(4, 2)

        def forward(self, x):
            x = self.a(x)
            x = x + torch.relu(self.norm(self.b(x)))
            return self.head((x + torch.relu(x)).mean((2, 3)))

    inputs = torch.zeros(2, 3, 8, 8), torch.zeros(2, dtype=torch.long)
    captured = capture(Net(), inputs, nn.functional.cross_entropy)
    seed = captured.program.calls[captured.program.seed].name
    ops = tuple(
        op if op.name == seed else replace(op, time_s=1.0, workspace_bytes=WORK)
        for op in captured.graph.ops
    )
    graph = replace(captured.graph, ops=ops)
    assert any(op.in_place for op in ops)
    assert any(op.optional for op in ops)
    with_record = replace(graph, recorded=_assembled(captured, made_up(captured), ()))
    least = schedsim.api.try_plan(graph, 1, effort=0.05).min_feasible_bytes
    tight = schedsim.plan(graph, least, effort=0.05).schedule
    for schedule in (schedsim.Schedule.store_all(graph), tight):
        simulation = schedsim.simulate(with_record, schedule)
        for num_steps in (1, 2):
            found = allocate(simulation, num_steps=num_steps)
            assert found.bound_bytes == simulation.peak_bytes


def test_the_first_step_makes_the_gradients_that_stay():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3))
    captured = capture(model, (torch.zeros(2, 3, 8, 8),), lambda y: y.square().mean())
    found = _assembled(captured, made_up(captured), ())
    kept = _with_first_step(captured.program, found)
    blocks = [block for row in kept.first_blocks.values() for block in row]
    assert sorted(blocks) == sorted(kept.kept_blocks)
    assert kept.kept_bytes == sum(p.nbytes for p in model.parameters())
    assert set(kept.first_blocks) <= set(found.held_blocks)


def test_where_there_is_no_cuda_device_nothing_is_recorded():
    captured = capture(nn.Linear(4, 2), (torch.zeros(3, 4),), lambda y: y.sum())
    assert with_requests(captured, ()) is captured


@pytest.mark.gpu
@needs_cuda
@pytest.mark.skipif(
    torch.cuda.is_available() and has_values(CUDA) and not has_times(CUDA),
    reason="Triton's kernels do not run on the CPU",
)
def test_the_budget_of_a_compiled_step_bounds_what_is_reserved():
    """Compiled groups are recorded like ops, and their runs are not joined."""
    gc.collect()
    torch.cuda.empty_cache()
    others = torch.cuda.memory_reserved()  # what tests before hold is no part of the step
    sizes = {"layers": 2, "hidden": 1024, "heads": 16, "seq": 512, "vocab": 8000, "batch": 16}
    built = build_model("gpt2", **sizes, device="cuda")
    model = built.model.train()
    module = schedsim.rematerialize(
        model, built.inputs, 10**12, built.loss, compile=True, effort=1.0
    )

    def reserved():
        planned = module.prepare(*built.inputs)
        assert any("compiled:" in note for note in planned.captured.notes)
        assert planned.captured.workload.recorded is not None
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        for _ in range(3):
            planned.module(*built.inputs).backward()
            model.zero_grad(set_to_none=True)
        return torch.cuda.max_memory_reserved() - others

    most = reserved()
    for share in (0.9, 0.75):
        module.replan(int(share * most))
        assert reserved() <= module.budget_bytes


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("keeps", [False, True], ids=["freed", "kept"])
@pytest.mark.parametrize(
    "text",
    [
        "model:gpt2,layers=4,hidden=256,heads=2,seq=512,vocab=10000",
        "model:resnet50,batch=4",
        "model:unet,width=8,image=64",
        "model:lstm,seq=16,batch=8",
    ],
)
def test_what_is_reserved_is_predicted(text, keeps):
    """Every schedule within 1 % or 8 MiB; requested bytes are the simulator's.

    Where gradients are kept, of the step that makes them and of one that adds to them.
    """
    target = load_target(text, "cuda")
    captured = capture_target(target, "op", keeps_gradients=keeps)
    graph = captured.graph
    least = schedsim.api.try_plan(graph, 1, allocator="exact", effort=0.1).min_feasible_bytes
    plan = schedsim.plan(graph, int(least * 1.1), allocator="exact", effort=0.1)
    schedules = {"all": schedsim.Schedule.store_all(graph), "plan": plan.schedule}
    steps = MeasuredSteps(target, captured, schedules)
    steps.keeps_gradients = keeps
    for name, schedule in schedules.items():
        simulation = schedsim.simulate(graph, schedule)
        found = allocate(simulation, num_steps=1 + keeps, **graph.recorded.allocator_options)
        real = steps.peak(name)
        assert simulation.peak_bytes == pytest.approx(real.total_bytes, rel=1e-3, abs=2**16)
        gap = abs(found.peak_reserved_bytes - real.reserved_bytes)
        assert gap <= max(8 * 2**20, real.reserved_bytes // 100)

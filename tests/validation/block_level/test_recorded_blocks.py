"""Requests of blocks: put together from a record, and as CUDA's allocator got them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.block_level.recorded_blocks import _assembled, _Marks  # noqa: E402
from schedsim.validation.measure.cuda_requests import RequestEvent  # noqa: E402
from schedsim.validation.steps import MeasuredSteps  # noqa: E402
from schedsim.validation.targets import capture_target, load_target  # noqa: E402

import schedsim  # noqa: E402
from schedsim.allocators import allocate  # noqa: E402
from schedsim.api import try_plan  # noqa: E402

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def test_blocks_get_their_holders():
    """A saving forward holds its value by address; the rest is its bundle; late frees are its own.

    An address may be used again by a later block.
    """
    watch = _Marks(None, True, 1)
    watch.holders = {"F0+": {100: "a1"}, "loss": {300: "d1"}, "B0": {}}
    watch.bundles = {"F0+": "r1"}

    def ask(mark, address, size):
        return RequestEvent(mark, True, address, size)

    def free(mark, address):
        return RequestEvent(mark, False, address, 0)

    events = [
        ask("F0+", 100, 1), free("F0+", 100), ask("F0+", 200, 2), ask("F0+", 100, 3),
        ask("F0+", 400, 4), free("after F0+", 400),
        ask("loss", 300, 5), free("after loss", 200),
        ask("B0", 500, 6), free("after B0", 100),
    ]  # fmt: skip
    step = _assembled(events, watch, ((7,),))
    assert step.block_bytes == (1, 2, 3, 4, 5, 6)
    assert step.holders == ("", "r1", "a1", "r1", "d1", "")
    assert step.records["F0+"][:5] == (0, ~0, 1, 2, 3)
    assert step.records["loss"] == (4,)
    assert step.records["F0"] == (0, ~0, 1, 2, 3, ~1, ~3)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("keeps", [False, True], ids=["freed", "kept"])
@pytest.mark.parametrize(
    "text",
    ["model:gpt2,layers=4,hidden=128,heads=2,seq=128,vocab=1000", "model:unet,width=8,image=64"],
)
def test_what_is_reserved_is_predicted(text, keeps):
    """Every schedule within 1 % or 8 MiB; requested bytes are the simulator's.

    Where gradients are kept, of the step that makes them and of one that adds to them.
    """
    target = load_target(text, "cuda")
    captured = capture_target(target, rounds=0, keeps_gradients=keeps)
    workload = captured.workload
    least = try_plan(workload, 1, allocator="exact").min_feasible_bytes
    plan = schedsim.plan(workload, int(least * 1.1), allocator="exact")
    schedules = {"all": schedsim.Schedule.store_all(workload), "plan": plan.schedule}
    steps = MeasuredSteps(target, captured, schedules)
    for name, schedule in schedules.items():
        found = allocate(schedsim.simulate(workload, schedule), num_steps=1 + keeps)
        real = steps.peak(name)
        assert found.bound_bytes == pytest.approx(real.total_bytes, rel=1e-3, abs=2**16)
        gap = abs(found.peak_reserved_bytes - real.reserved_bytes)
        assert gap <= max(8 * 2**20, real.reserved_bytes // 100)

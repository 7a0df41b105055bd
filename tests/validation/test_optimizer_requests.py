"""The optimizer's step among the requests of a step."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.measure.cuda_requests import RequestEvent  # noqa: E402
from schedsim.validation.optimizer_requests import _numbered, _twin, with_optimizer  # noqa: E402
from schedsim.validation.targets import load_target  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim.dataflow.recorded_step import RecordedStep  # noqa: E402

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def test_state_stays_and_moments_of_the_step_go():
    """Blocks are numbered after those of the ops; of a later step nothing stays."""
    events = [
        RequestEvent("first", True, 100, 7),
        RequestEvent("first", True, 200, 8),
        RequestEvent("first", False, 200, 8),
        RequestEvent("first", False, 999, 5),
    ]
    sizes = [1, 2, 3]
    assert _numbered(events, sizes, keeps=True) == (3, 4, ~4)
    assert _numbered(events, sizes, keeps=False) == (5, 6, ~6, ~5)
    assert sizes == [1, 2, 3, 7, 8, 7, 8]


def test_the_twin_has_the_settings_and_none_of_the_tensors():
    """Groups, options and frozen parameters are the given optimizer's."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    model[0].bias.requires_grad_(False)
    groups = [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[1].parameters()}]
    given = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    before = [p.detach().clone() for p in model.parameters()]
    twin = _twin(given, model)
    assert [g["lr"] for g in twin.param_groups] == [0.5, 0.1]
    own = [p for g in twin.param_groups for p in g["params"]]
    assert [tuple(p.shape) for p in own] == [tuple(p.shape) for p in model.parameters()]
    assert [p.requires_grad for p in own] == [True, False, True, True]
    assert not {p.data_ptr() for p in own} & {p.data_ptr() for p in model.parameters()}
    for p in own:
        p.grad = torch.ones_like(p)
    twin.step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert not given.state


@pytest.mark.parametrize("optimizer", ["adamw", None, 4096])
def test_without_a_device_or_an_optimizer_the_record_is_as_it_was(optimizer):
    step = RecordedStep((), (8,), ("a",), {"F": (0,)})
    assert with_optimizer(step, optimizer, nn.Linear(2, 2), []) == (step, "")


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("level", ["op", "block"])
@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
def test_what_a_loop_reserves_is_predicted(level, optimizer):
    """Three steps with their optimizer reserve what the plan says, within 1 % or 8 MiB."""
    text = "model:gpt2,layers=6,hidden=256,heads=4,seq=512,batch=2,vocab=5000"
    gc.collect()  # models of other tests
    torch.cuda.empty_cache()
    others = torch.cuda.memory_reserved()
    target = load_target(text, "cuda")
    given = optimizer(target.model.parameters(), lr=0.01)
    module = schedsim.rematerialize(
        target.model, target.inputs, "80%", target.loss, optimizer=given, level=level, effort=0.2
    )
    told = module.plan.setting.allocator
    assert module.plan.schedule is not None
    given.zero_grad()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        module(*target.inputs).backward()
        given.step()
        given.zero_grad()
    real = torch.cuda.memory_stats()["reserved_bytes.all.peak"] - others
    if not told.num_emptied:
        assert abs(told.reserved_bytes - real) <= max(8 * 2**20, real // 100)

"""The optimizer's step among the requests of a step."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.measure.cuda_requests import RequestEvent  # noqa: E402
from schedsim.validation.optimizer_requests import (  # noqa: E402
    _numbered,
    _steps,
    _twin,
    steps_on_fakes,
    with_optimizer,
)
from schedsim.validation.targets import load_target  # noqa: E402
from schedsim.validation.torch_private.profiler_records import (  # noqa: E402
    forget_library_workspaces,
)
from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

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


def on_a_device_elsewhere():
    """A model whose tensors say that they are on a CUDA device, and have no memory."""
    with FakeTensorMode(), torch.device("cuda"):
        return nn.ParameterList([torch.empty(size) for size in ((30, 20), (20,), (10, 20))])


def alive(events) -> tuple[int, int]:
    """Most bytes at once, and those that stay."""
    now, most = 0, 0
    for event in events:
        now += event.size_bytes if event.asks else -event.size_bytes
        most = max(most, now)
    return most, now


@pytest.mark.parametrize(
    ("optimizer", "state", "moment"),
    [
        ("adamw", 2, 1),  # two moments; the root of one of them for a while
        ("sgd", 0, 0),
        ("sgd-momentum", 1, 0),
        (lambda rows: torch.optim.Adam(rows, foreach=True, amsgrad=True), 3, 1),
        (lambda rows: torch.optim.RMSprop(rows), 1, 1),
    ],
)
def test_a_twin_without_memory_asks_for_state_and_moments(optimizer, state, moment):
    """As often all parameters as the method has tensors; of a later step nothing stays."""
    model = on_a_device_elsewhere()
    if not isinstance(optimizer, str):
        optimizer = optimizer(model.parameters())
    all_bytes = sum(p.nbytes for p in model.parameters())
    first, later = steps_on_fakes(optimizer, model)
    assert alive(first)[1] == state * all_bytes
    assert alive(first)[0] == (state + moment) * all_bytes
    assert alive(later) == (moment * all_bytes, 0)


def test_a_step_that_asks_for_a_value_cannot_do_without_memory():
    """Adafactor looks at the norm of a parameter."""
    model = on_a_device_elsewhere()
    with pytest.raises(Exception, match="local_scalar_dense"):
        steps_on_fakes(torch.optim.Adafactor(model.parameters()), model)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("AdamW", {}),
        ("AdamW", {"fused": True}),
        ("AdamW", {"foreach": False}),
        ("Adam", {"capturable": True}),
        ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
        ("RMSprop", {"momentum": 0.9, "centered": True}),
        ("NAdam", {}),
        ("RAdam", {}),
        ("Adagrad", {}),
        ("Adadelta", {}),
        ("Adamax", {}),
        ("Rprop", {}),
    ],
)
def test_a_twin_without_memory_asks_for_what_one_with_memory_asks(name, options):
    """Request by request."""
    model = nn.Sequential(nn.Linear(300, 200), nn.Linear(200, 100)).cuda()
    given = getattr(torch.optim, name)(model.parameters(), lr=0.01, **options)
    real, fake = _steps(given, model, torch.device("cuda:0")), steps_on_fakes(given, model)
    assert real is not None
    for one, other in zip(real, fake, strict=True):
        sizes, found = [], []
        assert _numbered(one, sizes, keeps=True) == _numbered(other, found, keeps=True)
        assert sizes == found


@pytest.mark.gpu
@needs_cuda
def test_where_a_twin_has_no_room_the_step_is_recorded_all_the_same():
    """The line says how."""
    device = torch.device("cuda:0")
    model = nn.Linear(4000, 4000, bias=False).cuda()
    step = RecordedStep((), (8,), ("a",), {"F": (0,)})
    roomy, line = with_optimizer(step, "adamw", model, [])
    gc.collect()
    torch.cuda.empty_cache()
    share = (torch.cuda.memory_reserved() + 32 * 2**20) / torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(share, device)
    try:
        narrow, other = with_optimizer(step, "adamw", model, [])
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
    assert narrow == roomy
    assert "twin has no memory" in other
    assert "twin" not in line


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("level", ["op", "block"])
@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
def test_what_a_loop_reserves_is_predicted(level, optimizer):
    """Three steps with their optimizer reserve what the plan says, within 1 % or 8 MiB."""
    text = "model:gpt2,layers=6,hidden=256,heads=4,seq=512,batch=2,vocab=5000"
    gc.collect()  # models of other tests
    forget_library_workspaces()  # which the step takes anew
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

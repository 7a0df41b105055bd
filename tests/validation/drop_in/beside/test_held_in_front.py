"""What the loop holds in front of a step counts in the budget, whatever it is."""

from __future__ import annotations

import copy
import itertools
import re
import warnings

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.beside import held_in_front  # noqa: E402
from schedsim.validation.drop_in.beside.held_in_front import (  # noqa: E402
    HeldInFront,
    bytes_in_front,
    bytes_of_graphs,
    tensors_now,
)
from schedsim.validation.guards.plan_variants import PlainStepWarning  # noqa: E402
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import schedsim  # noqa: E402
from schedsim.errors import InfeasibleBudgetError  # noqa: E402


@pytest.mark.slow
def test_bytes_of_a_graph():
    x = torch.randn(64, 64, requires_grad=True)
    before = bytes_of_graphs(tensors_now())[0].keys() | {x.data_ptr()}
    made = x.sin().tanh()  # sin keeps x, tanh its own result
    found, _ = bytes_of_graphs(tensors_now())
    assert [size for it, size in found.items() if it not in before] == [made.nbytes]
    made.sum().backward()
    del made
    assert not bytes_of_graphs(tensors_now())[0].keys() - before


@pytest.mark.slow
def test_tensors_without_bytes_of_their_own_do_not_count():
    """What a transform of functions has wrapped, and what a trace has instead of values."""
    left = []

    def function(x):
        left.append(x.sin().tanh())
        return left[-1].sum()

    x = torch.randn(64, 64)
    before = bytes_of_graphs(tensors_now())
    _, pull_back = torch.func.vjp(function, x)
    with FakeTensorMode():
        left.append(torch.randn(64, 64, requires_grad=True).sin().tanh())
    assert all(it.grad_fn is not None for it in left)
    assert bytes_of_graphs(tensors_now()) == before
    del pull_back


def test_no_hook_of_a_checkpoint_runs():
    x = torch.randn(64, 64, requires_grad=True)
    runs = []

    def run(x):
        runs.append(None)
        return x.sin().cos()

    made = checkpoint(run, x, use_reentrant=False)
    bytes_of_graphs(tensors_now())
    assert len(runs) == 1
    del made


def critic():
    layers = [nn.Linear(16, 128), nn.LeakyReLU(0.2)]
    for _ in range(5):
        layers += [nn.Linear(128, 128), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, nn.Linear(128, 1))


def penalty(model, x):
    """As of a WGAN-GP: the graph of a gradient, before the critic's own forward."""
    x = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(model.forward(x).sum(), x, create_graph=True)
    return (slope.norm(2, 1) - 1).square().mean()


def steps(model, x, num, *, twice=False):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(num):
        slope = penalty(model, x[:128] if twice else x)
        loss = model(x).square().mean() + slope
        if twice:
            loss = loss - model(x * 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.slow
@pytest.mark.parametrize(("twice", "share"), [(False, 0.9), (True, 0.7)])
def test_a_gradient_penalty_before_the_step_counts(twice, share):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = critic(), torch.randn(1024, 16)
    plain = copy.deepcopy(model)
    resident = storage_bytes([*model.parameters(), x])
    expected = steps(plain, x, 5, twice=twice)
    [reading] = AllocatorMeter().read(lambda: steps(plain, x, 2, twice=twice))
    budget = int((reading.peak_bytes + resident) * share)
    schedsim.rematerialize(model, (x,), budget, in_place=True, extra_bytes=3 * x.nbytes)
    assert steps(model, x, 5, twice=twice) == expected
    [reading] = AllocatorMeter().read(lambda: steps(model, x, 2, twice=twice))
    assert reading.peak_bytes + resident <= budget
    assert all(map(torch.equal, model.parameters(), plain.parameters()))


@pytest.mark.slow
def test_where_it_does_not_fit_the_step_is_refused():
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = critic(), torch.randn(1024, 16)
    schedsim.rematerialize(model, (x,), 11_348_394, in_place=True)  # the plain step takes 16.2 MB
    with pytest.raises(InfeasibleBudgetError):
        steps(model, x, 5)


@pytest.mark.slow
def test_what_a_loop_makes_in_one_step_and_holds_into_the_next_counts():
    """Autograd has made it before the backward."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.Tanh())]
    model, x = nn.Sequential(*layers), torch.randn(256, 64)
    weight, given = torch.randn(64, 64, requires_grad=True), torch.randn(512, 64)

    def train(model, num):
        held = torch.zeros(())
        for _ in range(num):
            out = model(x).square().mean()
            later = (given @ weight).sin().tanh().mean()
            (out + held).backward()
            held = later
            model.zero_grad()
            weight.grad = None

    plain = copy.deepcopy(model)
    [reading] = AllocatorMeter().read(lambda: train(plain, 3))
    resident = storage_bytes([*model.parameters(), x, weight, given])
    budget = int(0.9 * (reading.peak_bytes + resident))
    extra = storage_bytes([weight, given])
    options = {"in_place": True, "effort": 0.2, "check": "never", "extra_bytes": extra}
    schedsim.rematerialize(model, (x,), budget, **options)
    train(model, 6)
    [reading] = AllocatorMeter().read(lambda: train(model, 3))
    assert reading.peak_bytes + resident <= budget


def test_a_loop_is_looked_at_ever_more_rarely(monkeypatch):
    """All objects of the process are gone through, which no step may wait for often."""
    looks = []
    monkeypatch.setattr(held_in_front, "bytes_in_front", lambda *_: looks.append(None) or (0, 0, 0))
    torch._dynamo.reset()
    model, x = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)), torch.randn(512, 16)
    schedsim.rematerialize(model, (x,), 1_500_000, in_place=True, effort=0.1, check="never")
    for _ in range(20):
        model(x).square().mean().backward()
        model.zero_grad()
    assert len(looks) <= 6  # the first steps, and those whose numbers are powers of two


@pytest.mark.slow
def test_what_comes_later_and_does_not_fit_is_said_with_a_budget_that_has_room(monkeypatch):
    """The budget that the line names holds."""
    x = torch.randn(512, 16)

    def train(budget):
        torch._dynamo.reset()
        torch.manual_seed(0)
        looks = [0, 0]  # and then what the loop holds from the third step on
        monkeypatch.setattr(
            held_in_front,
            "bytes_in_front",
            lambda *_: (0, 0, looks.pop() if looks else 2_000_000),
        )
        # As where autograd makes a node in each step before its forward.
        monkeypatch.setattr(held_in_front, "sequence_number", itertools.count().__next__)
        model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
        options = {"in_place": True, "effort": 0.1, "check": "never"}
        schedsim.rematerialize(model, (x,), budget, **options)
        for _ in range(5):
            model(x).square().mean().backward()
            model.zero_grad()

    with pytest.warns(PlainStepWarning, match="in front of a step, beside which") as caught:
        train(1_500_000)
    line = next(str(w.message) for w in caught if "beside which" in str(w.message))
    named = int(re.search(r"budget=(\d+) has room", line)[1])
    assert named > 2_000_000
    with warnings.catch_warnings():
        warnings.simplefilter("error", PlainStepWarning)
        train(named)


@pytest.mark.slow
@pytest.mark.usefixtures("with_others_tensors")
def test_what_was_there_before_is_told_of_where_steps_exceed_the_budget_by_it():
    """As another model, which the line's bytes count; a data set is none of it."""
    targets, x = nn.Parameter(torch.zeros(1 << 18)), torch.randn(512, 16)
    data = torch.zeros(1 << 20)

    def train(budget, **options):
        torch._dynamo.reset()
        model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
        options |= {"in_place": True, "effort": 0.1, "check": "never"}
        schedsim.rematerialize(model, (x,), budget, **options)
        for _ in range(5):
            model(x).square().mean().backward()
            model.zero_grad()

    with pytest.warns(PlainStepWarning, match="not counted beyond extra_bytes=0") as caught:
        train(700_000)
    [line] = [str(it.message) for it in caught if "not counted beyond" in str(it.message)]
    named = int(re.search(r"extra_bytes=(\d+) counts", line)[1])
    assert targets.nbytes <= named < data.nbytes
    with warnings.catch_warnings():
        warnings.simplefilter("error", PlainStepWarning)
        train(700_000 + named, extra_bytes=named)
        train("100%")  # a share is one of what counts


@pytest.mark.slow
def test_graphs_in_a_cycle_are_freed_and_do_not_count():
    """As those that the traceback of a refusal holds, which the loop has caught."""
    x, front = torch.randn(64, 64, requires_grad=True), HeldInFront(0)
    before = front.look(None, lambda: {x.data_ptr()}, 0, is_measured=True)
    cycle = [x.sin().tanh()]
    cycle.append(cycle)
    del cycle
    assert front.look(None, lambda: {x.data_ptr()}, 0, is_measured=True) == 0
    assert front.most_bytes == before


def test_what_was_there_before_is_none_of_it():
    """As a data set, or another model; what the loop has named stands for that first."""
    there = torch.zeros(1000)
    front = HeldInFront(0)
    first = front.look(None, set, 0, is_measured=False)
    made = [torch.zeros(500), torch.zeros(250)]
    assert front.look(None, lambda: {made[1].data_ptr()}, 0, is_measured=False) == 2000
    assert front.most_bytes == front.bytes_after(None) == first + 2000
    del there
    assert front.look(None, set, 0, is_measured=False) == 1000


def test_behind_a_new_kind_of_step_what_is_known_counts_and_is_no_more():
    """Its first step was planned beside the most of all kinds: no line says that it is over."""
    front = HeldInFront(0)
    first = front.look(0, set, 0, is_measured=False)
    made = torch.zeros(500)
    assert front.look(0, set, 0, is_measured=False) == 2000
    assert front.look(1, set, 0, is_measured=True) == 0
    assert front._num_looks == 3
    assert front.bytes_after(1) == first + made.nbytes


def test_bytes_that_name_nothing_there_before_are_those_of_what_comes():
    before = {}
    there = [torch.zeros(1000)]
    for storage in held_in_front.held_by_python(tensors_now()):
        before[held_in_front.key_of(storage)] = held_in_front.storage_weakly(storage)
    old, _, made = bytes_in_front(set(), before)
    assert old >= 4000
    front = HeldInFront(old + 300)
    more = torch.zeros(100)
    assert front._bytes_now(set(), is_known=True) == max(0, made + 400 - 300)
    del there, more


def test_a_few_losses_that_the_loop_collects_have_room():
    front, losses = HeldInFront(0), [torch.zeros(())]
    assert front.look(None, set, 4096, is_measured=False) in (0, 256)
    losses += [torch.zeros(()) for _ in range(8)]
    more = front.look(None, set, 4096, is_measured=False)
    losses += [torch.zeros(()) for _ in range(8)]
    assert more in (0, 256)
    assert front.look(None, set, 4096, is_measured=False) == 0


def test_a_few_losses_have_room_beside_much_that_is_held():
    """Where the budget had just room for the rest, they left no plan, and nothing was counted."""
    front, made = HeldInFront(0), torch.zeros(10_000)
    front.look(None, set, 4096, is_measured=True)
    counted = front.most_bytes
    assert counted >= made.nbytes + 4096
    losses = [torch.zeros(()) for _ in range(8)]
    assert front.look(None, set, 4096, is_measured=True) == 0
    assert front.most_bytes == counted
    del losses


def test_the_room_for_a_few_is_planned_for_and_nothing_that_lines_tell_of():
    """A peak with the room in it was told of as over a budget within which the step was."""
    front = HeldInFront(0)
    first = front.look(None, set, 0, is_measured=True)
    made = torch.zeros(10_000)
    front.look(None, set, 4096, is_measured=True)
    assert front.seen_after(None) == first + made.nbytes
    assert front.bytes_after(None) == first + made.nbytes + 4096
    losses = [torch.zeros(()) for _ in range(8)]
    front.look(None, set, 4096, is_measured=True)
    assert front.seen_after(None) == first + made.nbytes + 32
    del losses


def test_a_graph_in_front_of_a_later_step_is_looked_at_where_autograd_has_made_more():
    """A forward of the plain model, say, in a step that would not be looked at by itself."""
    x, front = torch.randn(64, 64, requires_grad=True), HeldInFront(0)

    def step(depth):
        made = x
        for _ in range(depth):
            made = made.sin().tanh()
        found = front.look(0, lambda: {x.data_ptr()}, 0, is_measured=False)
        made.sum().backward()
        front.backward_ends()
        return found

    for _ in range(5):
        step(1)
    assert step(1) == 0
    assert step(4) == 3 * x.nbytes  # beyond the one that was planned for
    assert step(4) == 0


def test_what_counts_elsewhere_at_unknown_addresses_counts_once():
    """As a loss whose storage is larger than it, of a step that was not measured."""
    front = HeldInFront(0)
    first = front.look(None, set, 0, is_measured=True)
    made = torch.zeros(500)
    assert front.look(None, set, 0, is_measured=True, but_bytes=first + 2000) == 0
    assert front.look(None, set, 0, is_measured=True, but_bytes=1500) == 500
    del made


def test_what_has_counted_elsewhere_is_looked_at_and_no_data_set():
    """As a flat buffer of gradients that was there when the model got its budget."""
    there = torch.zeros(1000)
    front = HeldInFront(0)
    for _ in range(2):
        front.look(None, set, 0, is_measured=False)
    first = front.most_bytes
    key = held_in_front.key_of(there.untyped_storage())
    assert front.look(None, set, 0, is_measured=False, dropped=[key]) == 4000
    assert front.most_bytes == first + 4000


class Student(nn.Module):
    """Its layers are watched by hooks."""

    def __init__(self, width=48, depth=5):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(depth)
        )

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


def distil(model, teacher, num):
    """By a feature of a teacher, of which hooks keep all; the losses."""
    features = {}
    for i, layer in enumerate(teacher.layers):
        layer.register_forward_hook(lambda _m, _i, out, i=i: features.__setitem__(i, out.detach()))
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=1e-2), []
    for step in range(num):
        x = torch.full((256, 48), 0.1 * (step + 1))
        with torch.no_grad():
            teacher(x)
        loss = (model(x) - features[len(features) - 1]).square().mean()
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


@pytest.mark.slow
def test_features_that_hooks_of_a_teacher_keep_count():
    """Each step took 1.04 of its budget with them, and no line said so."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, teacher = Student(), Student().requires_grad_(False)
    plain, twin = copy.deepcopy(model), copy.deepcopy(teacher)
    extra = storage_bytes([*teacher.parameters()])
    resident = storage_bytes([*model.parameters()]) + extra
    expected = distil(plain, twin, 6)
    [reading] = AllocatorMeter().read(lambda: distil(plain, twin, 3))
    budget = resident + int(0.8 * reading.peak_bytes)
    options = {"in_place": True, "effort": 0.2, "extra_bytes": extra, "check": "never"}
    schedsim.rematerialize(model, (torch.zeros(256, 48),), budget, **options)
    assert distil(model, teacher, 6) == expected
    [reading] = AllocatorMeter().read(lambda: distil(model, teacher, 3))
    assert resident + reading.peak_bytes <= budget

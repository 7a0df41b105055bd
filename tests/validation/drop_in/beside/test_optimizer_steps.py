"""What an optimizer's step takes, and the code behind it: said where it is too much."""

from __future__ import annotations

import copy
import re
import warnings
from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.beside import optimizer_steps  # noqa: E402
from schedsim.validation.drop_in.beside.optimizer_steps import OptimizerPeak  # noqa: E402
from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from schedsim.validation.drop_in.records.outside_code import OutsideBytes  # noqa: E402
from schedsim.validation.guards.plan_variants import PlainStepWarning  # noqa: E402
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim.errors import InfeasibleBudgetError  # noqa: E402

WIDTH, DEPTH = 64, 6


def model_and_input():
    torch.manual_seed(0)
    layers = [(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(DEPTH)]
    return nn.Sequential(*(layer for pair in layers for layer in pair)), torch.randn(32, WIDTH)


def within(budget, model, x):
    return schedsim.rematerialize(model, x, budget, in_place=True, effort=0.1, check="never")


def train(model, x, optimizer, *, steps=8, every=1):
    """Lines that are said of what runs outside of the plan."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for i in range(steps):
            model(x).square().mean().backward()
            if i % every == every - 1:
                optimizer.step()
                optimizer.zero_grad()
    return [str(one.message) for one in said if one.category is PlainStepWarning]


@contextmanager
def failing(optimizer):
    """Let a step fail once it has begun."""

    def fail(_optimizer, _arguments, _keywords):
        raise RuntimeError("no step")

    hook = optimizer.register_step_pre_hook(fail)
    try:
        yield
    finally:
        hook.remove()


def peaks(model):
    return session_in(model)._optimizers._peaks


def parameters_bytes(model):
    return storage_bytes(list(model.parameters()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda p: torch.optim.AdamW(p, foreach=True), "foreach=False copies one"),
        (lambda p: torch.optim.AdamW(p, foreach=False), None),
        (lambda p: torch.optim.AdamW(p, fused=True), None),
    ],
)
def test_copies_of_an_optimizer_are_told_with_what_makes_none(make, told):
    model, x = model_and_input()
    size = parameters_bytes(model)
    within(int(4.7 * size), model, x)
    lines = train(model, x, make(model.parameters()))
    assert len(lines) == (told is not None)
    if told is not None:
        assert told in lines[0]
        assert "fused=True copies nothing" in lines[0]
        assert "AdamW.step takes about" in lines[0]
    assert "AdamW.step takes" in schedsim.drop_in_report(model)


@pytest.mark.slow
def test_states_that_the_first_step_makes_count_once():
    """`optimizer="adamw"` counts them before they are there."""
    model, x = model_and_input()
    size = parameters_bytes(model)
    budget = int(5.2 * size)
    schedsim.rematerialize(model, x, budget, in_place=True, optimizer="adamw", check="never")
    train(model, x, torch.optim.AdamW(model.parameters(), foreach=False), steps=4)
    # The first step of another optimizer is measured: no plan is made there. With the states twice
    # it would take 6 times the parameters.
    assert train(model, x, torch.optim.AdamW(model.parameters(), foreach=False)) == []
    [peak] = peaks(model).values()
    assert 4 * size < peak.peak_bytes < 4.5 * size


@pytest.mark.slow
def test_a_remedy_is_none_that_is_there_already():
    """On a CPU torch takes one parameter at a time by default; the largest is copied then."""
    model, x = model_and_input()
    within(10**8, model, x)
    train(model, x, torch.optim.AdamW(model.parameters()))
    [peak] = peaks(model).values()
    assert peak.passing_bytes > 0.01 * peak.peak_bytes
    assert peak.remedy == "fused=True copies nothing"


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.AdamW(p, foreach=True),
        pytest.param(
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
            marks=pytest.mark.slow,
        ),
        pytest.param(torch.optim.Adafactor, marks=pytest.mark.slow),
    ],
)
def test_the_peak_of_a_step_is_the_measured_one(make):
    model, x = model_and_input()
    plain = copy.deepcopy(model)
    within(10**9, model, x)
    train(model, x, make(model.parameters()))
    [peak] = peaks(model).values()
    optimizer = make(plain.parameters())
    loss = plain(x).square().mean()
    loss.backward()
    optimizer.step()
    resident = storage_bytes([*plain.parameters(), *(p.grad for p in plain.parameters()), x, loss])
    resident += storage_bytes(dict(optimizer.state))
    [reading] = AllocatorMeter().read(optimizer.step)
    assert peak.peak_bytes == pytest.approx(resident + reading.peak_bytes, abs=2048)


@pytest.mark.slow
def test_an_optimizer_that_does_not_step_in_each_step_is_measured():
    model, x = model_and_input()
    within(10**9, model, x)
    train(model, x, torch.optim.SGD(model.parameters(), lr=0.1), steps=8, every=2)
    assert "SGD" in peaks(model)


class Counter:
    """A meter of a device that tells its bytes at any time."""

    left_blocks = {}  # noqa: RUF012

    def start(self):
        self.marks = 0

    def mark(self, _watched=None):
        self.marks += 1

    def stop(self):
        return [OutsideBytes(5, 1, 0, 5, 5, 1), OutsideBytes(9, 0, 1, 10, 9, 0)][: self.marks + 1]


def test_on_a_device_the_code_behind_the_step_is_measured_up_to_the_next(monkeypatch):
    """Until a forward comes, of training or of evaluation."""
    model, x = model_and_input()
    within(10**9, model, x)
    steps, optimizer = session_in(model)._optimizers, torch.optim.SGD(model.parameters())
    monkeypatch.setattr(steps._held, "device_of", lambda _: torch.device("cuda"))
    monkeypatch.setattr(optimizer_steps, "requested_bytes", lambda _: 100)
    monkeypatch.setattr(optimizer_steps, "outside_meter", lambda _: Counter())
    optimizer.step()
    assert not peaks(model)
    with torch.no_grad():
        model(x)
    assert peaks(model)["SGD"][2:] == (105, 4, 110)


@pytest.mark.slow
def test_the_optimizer_of_another_model_is_not_measured():
    model, x = model_and_input()
    other, _ = model_and_input()
    other(x).sum().backward()
    within(10**9, model, x)
    train(model, x, torch.optim.AdamW(other.parameters()))
    assert not peaks(model)


@pytest.mark.slow
def test_a_step_that_fails_ends_as_it_does():
    """And what was being measured is dropped."""
    model, x = model_and_input()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    within(10**9, model, x)
    train(model, x, optimizer, steps=1)
    with failing(optimizer), pytest.raises(RuntimeError, match="no step"):
        train(model, x, optimizer)
    assert not train(model, x, optimizer)
    assert "SGD" in peaks(model)


@pytest.mark.slow
def test_states_of_the_first_step_are_planned_for_before_the_second():
    model, x = model_and_input()
    x = torch.randn(512, WIDTH)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    budget = 4 * parameters_bytes(model) + storage_bytes([x]) * 7
    within(budget, model, x)
    train(model, x, optimizer, steps=1)
    [reading] = AllocatorMeter().read(lambda: model(x).square().mean().backward())
    resident = 3 * parameters_bytes(model) + storage_bytes([x])
    assert resident + reading.peak_bytes <= budget


@pytest.mark.slow
def test_states_for_which_there_is_no_room_are_named_in_the_refusal():
    model, x = model_and_input()
    size = parameters_bytes(model)
    within(int(2.9 * size), model, x)
    with pytest.raises(schedsim.InfeasibleBudgetError) as refused:
        train(model, x, torch.optim.AdamW(model.parameters()))
    assert "states that an optimizer has made" in refused.value.hint
    assert 'optimizer="adamw"' in refused.value.hint


@pytest.mark.slow
def test_no_line_of_the_profiler_is_printed(capfd):
    model, x = model_and_input()
    within(10**9, model, x)
    train(model, x, torch.optim.AdamW(model.parameters(), foreach=True))
    assert "Memory block" not in capfd.readouterr().err


def test_lines_name_the_step_or_the_code_behind_it():
    peak = OptimizerPeak("Adam", "do so", peak_bytes=100, passing_bytes=40, behind_bytes=120)
    [step], [behind] = list(peak.lines_over(90)), list(peak.lines_over(110))
    assert "Adam.step takes about 100 B," in step
    assert step.endswith("do so")
    assert "between Adam.step and the next forward" in behind
    assert not list(peak.lines_over(120))


class Words(nn.Module):
    """A table that is most of the model, of which a step of Adam copies it twice."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(2000, 16), nn.Linear(16, 4)

    def forward(self, words):
        return self.head(torch.tanh(self.table(words)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "budget", [1000, pytest.param(420_000, marks=pytest.mark.slow)], ids=["first", "second step"]
)
def test_the_budget_that_a_refusal_names_has_room_for_the_step_of_adam(budget):
    """Before the first step by the sizes of what is trained, and so behind it."""
    said = []
    for _ in range(2):
        torch._dynamo.reset()
        model, words = Words(), torch.randint(0, 2000, (32,))
        try:
            within(budget, model, words)
            said = train(model, words, torch.optim.AdamW(model.parameters()), steps=3)
        except InfeasibleBudgetError as error:
            budget = int(re.search(r"budget=(\d+)", error.hint)[1])
        else:
            break
    assert budget > 700_000
    assert said == []
    assert "AdamW.step takes" in schedsim.drop_in_report(model)


@pytest.mark.slow
@pytest.mark.parametrize("zeroed", ["behind the step", "before the forward"])
def test_a_teacher_in_front_of_the_student_is_told_of_on_a_cpu(zeroed):
    """With what is resident then: gradients count until the loop zeroes them."""
    model, _ = model_and_input()
    teacher = nn.Sequential(nn.Linear(WIDTH, 64 * WIDTH), nn.Tanh(), nn.Linear(64 * WIDTH, WIDTH))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    x, weights = torch.randn(256, WIDTH), storage_bytes(list(teacher.parameters()))
    budget = 12 * parameters_bytes(model) + weights
    schedsim.rematerialize(
        model, x, budget, in_place=True, effort=0.1, check="never", extra_bytes=weights
    )
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(8):
            x = torch.randn(256, WIDTH)
            with torch.no_grad():
                target = teacher(x)
            if zeroed == "before the forward":
                optimizer.zero_grad()
            (model(x) - target).square().mean().backward()
            optimizer.step()
            if zeroed == "behind the step":
                optimizer.zero_grad()
    [line] = [str(one.message) for one in said if one.category is PlainStepWarning]
    assert "between AdamW.step and the next forward, as the forward of a teacher" in line
    [peak] = peaks(model).values()
    gradients = (p.grad for p in model.parameters() if p.grad is not None)
    own = [*model.parameters(), *gradients, dict(optimizer.state), x]
    there = storage_bytes([own, target]) + weights  # the last one, while the next is made
    with torch.no_grad():
        [reading] = AllocatorMeter().read(lambda: teacher(x))
    assert peak.behind_bytes == pytest.approx(there + reading.peak_bytes, abs=2048)


@pytest.mark.slow
def test_code_behind_the_step_is_looked_at_again():
    """A loop may begin with it later."""
    model, x = model_and_input()
    within(10**6, model, x)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, x, optimizer, steps=24)
    assert peaks(model)["SGD"].behind_bytes < 10**6
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(16):
            torch.zeros(10**6)
            model(x).square().mean().backward()
            optimizer.step()
    assert ["between SGD.step" in str(one.message) for one in said] == [True]

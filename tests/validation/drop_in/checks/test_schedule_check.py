"""A new schedule of a model in place is compared with another before it is trusted."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.checks import schedule_check  # noqa: E402
from schedsim.validation.drop_in.checks.schedule_check import generators_kept  # noqa: E402
from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from schedsim.validation.drop_in.parts import part_code  # noqa: E402
from schedsim.validation.drop_in.parts.output_uses import OutputUse  # noqa: E402
from schedsim.validation.guards.plan_variants import ReplannedWarning  # noqa: E402
from schedsim.validation.measure import AllocatorMeter  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        for layer in self.layers:
            x = self.drop(torch.tanh(layer(x)))
        return x


LENGTHS = (32, 48, 40, 48)


def losses(model, lengths=LENGTHS):
    torch.manual_seed(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for length in lengths:
        x = torch.randn(length, 16)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def in_budget(check="plan", lengths=LENGTHS):
    torch.manual_seed(0)
    model, plain = Net(), Net()
    plain.load_state_dict(model.state_dict())
    expected = losses(plain, lengths)
    more = {"dynamic": True, "background": False, "check": check, "effort": 0.1}
    schedsim.rematerialize(model, torch.randn(32, 16), "90%", in_place=True, **more)
    return model, expected


@pytest.mark.slow
def test_new_schedules_are_compared_and_the_steps_stay():
    """The generator, too, stands where it would: dropout draws the same numbers."""
    model, expected = in_budget()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("default", message=".*planned anew for larger.*")
        assert losses(model) == expected
    assert sum(part.trust.num_compared for part in session_in(model).parts) >= 1
    assert "a new schedule with another" in schedsim.drop_in_report(model)


@pytest.mark.slow
def test_a_broken_schedule_is_caught_when_it_comes(monkeypatch):
    """All code emitted after the first plan negates a gradient: without the check, nobody sees."""
    honest = part_code.emit

    def broken(program, runs):
        halves = honest(program, runs)
        function = halves.backward.function

        def negated(*arguments):
            first, *others = function(*arguments)
            return [-first, *others]

        object.__setattr__(halves.backward, "function", negated)
        return halves

    # Whichever of them takes a new schedule: by measured times, that is not always the second.
    # At each, one that was compared before fits the budget of a comparison.
    lengths = (*LENGTHS, 52, 56, 60, 48)
    model, expected = in_budget(lengths=lengths)
    unchecked, _ = in_budget(check="never", lengths=lengths)
    monkeypatch.setattr(part_code, "emit", broken)
    assert losses(unchecked, lengths) != expected
    with pytest.warns(ReplannedWarning, match="is not its step: the gradient of"):
        assert losses(model, lengths) == expected
    assert session_in(model).parts[0].trust.refused


def test_generators_are_kept_in_no_memory_of_the_budget():
    """A comparison may take all of it; a generator's state would be 5056 bytes more."""

    def run():
        with generators_kept(()):
            torch.rand(1 << 16)

    torch.manual_seed(1)
    [reading] = AllocatorMeter().read(run)
    assert reading.peak_bytes < (1 << 18) + 4096
    drawn = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(drawn, torch.rand(3))


@pytest.mark.parametrize("room_bytes", [99, 100])
def test_a_comparison_over_the_budget_is_told(room_bytes, monkeypatch):
    """As beside what the loop holds of the step before through the forward alone."""
    told = []
    part = SimpleNamespace(
        use=OutputUse(),
        layouts=None,
        compared_bytes=lambda number, binding, lacking: 10 * number,
        session=SimpleNamespace(say_over=lambda part, num_bytes: told.append(num_bytes)),
    )
    monkeypatch.setattr(schedule_check, "_left_by", lambda *arguments: {})
    comparison = schedule_check.ScheduleComparison(part, {}, (), lambda: room_bytes)
    assert comparison.difference(10, 2) is None
    assert told == [1] * (room_bytes < 100)


class WithStates(nn.Module):
    """Gives a loss, and states of its layers, for which the loop gives no gradients."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(6))

    def forward(self, x):
        states = []
        for layer in self.layers:
            x = torch.tanh(layer(x))
            states.append(x.mean(1))
            if len(states) < 4:
                states.append(x.sin() * 2)
        return x.square().mean(), states


@pytest.mark.slow
@pytest.mark.parametrize(("budget", "is_tight"), [("460kB", False), ("410kB", True)])
def test_a_comparison_makes_no_gradients_that_do_not_come_where_there_is_no_room(
    budget, is_tight, monkeypatch
):
    """Made up for each output, they took a step that compares over its budget."""
    calls, honest = [], schedule_check._left_by

    def noting(part, number, arguments, binding, lacking):
        calls.append((part, number, dict(arguments), binding, lacking))
        return honest(part, number, arguments, binding, lacking)

    monkeypatch.setattr(schedule_check, "_left_by", noting)
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, x = WithStates(), torch.randn(256, 32)
    schedsim.rematerialize(model, x, budget, in_place=True, effort=0.2)
    for _ in range(5):
        loss = model(x)[0]
        loss.backward()
        del loss
        model.zero_grad()
    assert calls
    assert [bool(lacking) for *_, lacking in calls] == [is_tight] * len(calls)
    part, number, arguments, binding, lacking = calls[0]
    made = sum(t.nbytes for t in part.inputs_among(list(arguments.values())))
    [reading] = AllocatorMeter().read(lambda: honest(*calls[0]))
    counted = part.compared_bytes(number, binding, lacking) - made
    assert 0.8 * counted < reading.peak_bytes <= counted  # a loop may hold what it gives
    if is_tight:
        session = session_in(model)
        _, _, arguments, _, _ = calls[-1]
        held = sum(t.nbytes for t in arguments.values())
        [reading] = AllocatorMeter().read(lambda: honest(*calls[-1]))
        assert held + reading.peak_bytes <= session.budget_bytes
        [reading] = AllocatorMeter().read(lambda: honest(*calls[-1][:-1], frozenset()))
        assert held + reading.peak_bytes > session.budget_bytes

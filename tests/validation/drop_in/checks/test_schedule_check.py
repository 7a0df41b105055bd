"""A new schedule of a model in place is compared with another before it is trusted."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.checks.schedule_check import generators_kept  # noqa: E402
from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from schedsim.validation.drop_in.parts import part_code  # noqa: E402
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

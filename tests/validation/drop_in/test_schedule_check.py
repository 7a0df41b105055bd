"""A new schedule of a model in place is compared with another before it is trusted."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in import traced_part  # noqa: E402
from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from schedsim.validation.drop_in.schedule_check import (  # noqa: E402
    ScheduleTrust,
    bits_of,
    generators_kept,
)
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
    honest = traced_part.emit

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
    monkeypatch.setattr(traced_part, "emit", broken)
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


def test_bits_stand_for_values_places_and_strides():
    """Whatever differs gives other numbers."""
    x = torch.randn(70, 90)
    moved = x.clone()
    moved[3, 4], moved[5, 6] = x[5, 6].item(), x[3, 4].item()
    for other in (moved, -x, x.t().contiguous().t(), x.double(), x[:69]):
        assert bits_of(other) != bits_of(x)
    assert bits_of(x.clone()) == bits_of(x)
    assert bits_of(x.t()) == bits_of(x.clone().t())
    assert bits_of(x[:, ::2]) == bits_of(x.clone()[:, ::2])
    for odd in (torch.tensor(True), torch.tensor([1 + 2j]), torch.zeros(0, 3)):
        assert bits_of(odd) == bits_of(odd.clone())


_KINDS = {
    torch.float64: torch.int64,
    torch.int64: torch.int64,
    torch.float32: torch.int32,
    torch.bfloat16: torch.int16,
    torch.uint8: torch.uint8,
    torch.complex64: torch.int32,
    torch.complex128: torch.int64,
}


def as_integers(tensor):
    """Its numbers as integers, which share its memory."""
    flat = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return flat.view(_KINDS[tensor.dtype]).view(-1)


@settings(max_examples=examples(60), deadline=None)
@given(st.sampled_from(list(_KINDS)), st.integers(1, 600), st.data())
def test_each_flip_of_a_bit_is_seen(dtype, size, data):
    """A flip of one bit, the sign's too, and of the same bit at two places."""
    torch.manual_seed(size)
    x = torch.randint(0, 200, (size,)).to(dtype)
    bits = as_integers(x)
    bit = data.draw(st.integers(0, 8 * bits.element_size() - 1))
    first, second = (data.draw(st.integers(0, len(bits) - 1)) for _ in range(2))
    flip = torch.tensor([1 << bit], dtype=torch.uint64).view(torch.int64).to(bits.dtype)
    expected = bits_of(x)
    bits[first : first + 1] ^= flip
    assert bits_of(x) != expected
    bits[second : second + 1] ^= flip
    assert (bits_of(x) == expected) == (first == second)


def test_a_negated_tensor_is_another():
    """Doubles with an even number of signs, bools, and negated or conjugate views."""
    x = torch.randn(64, dtype=torch.float64)
    assert bits_of(-x) != bits_of(x)
    assert bits_of(~(x > 0)) != bits_of(x > 0)
    z = torch.complex(x, x.flip(0))
    assert bits_of(z.conj()) == bits_of(z.conj().clone()) != bits_of(z)
    assert bits_of(z.conj().imag) == bits_of(z.conj().resolve_conj().imag) != bits_of(z.imag)


def test_a_schedule_is_compared_at_two_sizes():
    """Before it runs, and at another size that comes again; with a trusted one that fits."""
    trust, seen = ScheduleTrust(), []
    trust.trust(2, (7,))

    def compare(one, other):
        seen.append((one, other))
        return "the loss is another" if one == 3 else None

    assert trust.settle(1, (8,), [1], compare) == (1, None)
    assert trust.is_new(1, (8,))
    assert trust.settle(1, (8,), [1, 2], compare) == (1, None)
    assert not trust.is_new(1, (8,))
    assert not trust.is_new(1, (9,)), "a size that is new does not wait"
    trust.runs(1, (9,))
    assert trust.num_sizes_uncompared == 1
    trust.meet((9,))
    assert trust.is_new(1, (9,))
    trust.settle(1, (9,), [2], compare)
    assert trust.num_sizes_uncompared == 0
    trust.meet((10,))
    assert not trust.is_new(1, (10,))
    assert trust.compared_at == [(7,), (8,), (9,)]
    assert trust.settle(3, (8,), [4, 1], compare) == (1, "the loss is another")
    assert trust.refused == {3: 1}
    assert seen == [(1, 2), (1, 2), (3, 1)]
    assert trust.settle(5, (8,), [4], compare) == (5, None)
    trust.meet((8,))
    assert not trust.is_new(5, (8,)), "two new ones that agree are not compared in every step"
    assert trust.is_new(5, (9,))
    trust.refused.clear()
    assert trust.settle(3, (8,), [4], compare) == (2, "the loss is another")


def test_a_schedule_that_ran_uncompared_is_told_of():
    """Where it turns out wrong at a size that comes again, steps have run by it."""
    trust = ScheduleTrust()
    trust.trust(0, (8,))
    trust.settle(1, (8,), [0], lambda *_: None)
    trust.runs(1, (9,))
    number, wrong = trust.settle(1, (9,), [0], lambda *_: "the loss is another")
    assert number == 0
    assert wrong.startswith("the loss is another (steps of 1 sizes ran by it")


def test_schedules_are_compared_ahead_of_need():
    """In the step that made them, or one a step where sizes come again; at two sizes."""
    trust = ScheduleTrust()
    trust.trust(0, (8,))
    trust.expect(0, now=True)
    assert not trust.expects, "it was compared"
    for number in (1, 2, 3):
        trust.expect(number, now=True)
    trust.expect(4, now=False)
    assert trust.expected((8,), fitting=[1, 2, 4]) == [1, 2]
    for number in (1, 2):
        trust.settle(number, (8,), [0], lambda *_: None)
    assert trust.expected((8,), fitting=[1, 2, 3, 4]) == []
    trust.meet((8,))
    assert trust.expected((8,), fitting=[1, 2, 3, 4]) == [3]
    trust.refused[3] = 0
    assert trust.expected((8,), fitting=[1, 2, 3, 4]) == [4]
    assert trust.expected((9,), fitting=[1, 2, 3, 4]) == []
    trust.meet((9,))
    assert trust.expected((9,), fitting=[1, 2]) == [1]


def test_a_step_that_has_nothing_to_compare_is_known_before_anything_is_looked_for():
    """One of new sizes that made no schedule, and one at whose sizes all were compared."""
    trust = ScheduleTrust()
    trust.trust(0, (8,))
    trust.expect(1, now=False)
    assert not trust.may_compare((8,))
    trust.meet((8,))
    assert trust.may_compare((8,))
    trust.settle(1, (8,), [0], lambda *_: None)
    assert not trust.may_compare((8,))
    trust.expect(2, now=True)
    assert trust.may_compare((9,))


def test_new_sizes_run_by_what_was_compared():
    """A few times: where no sizes come twice, some step has to compare."""
    trust = ScheduleTrust()
    trust.trust(0, (8,))
    trust.meet((8,))
    assert not trust.avoids(0, (9,))
    assert not trust.avoids(1, (8,))
    avoided = [trust.avoids(1, (size,)) for size in range(10, 30)]
    assert avoided[0]
    assert not avoided[-1]

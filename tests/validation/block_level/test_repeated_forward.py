"""Running a forward again as if for the first time."""

from __future__ import annotations

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.block_level.repeated_forward import (  # noqa: E402
    PYTHON,
    RandomState,
    changed_buffers,
    copies,
    frozen_statistics,
    generators,
    nearly_equal,
    other_buffers,
    replaced_buffers,
    same_values,
    untouched,
)
from torch import nn  # noqa: E402


class Counter(nn.Module):
    """A buffer that every forward moves, beside a batch norm."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("nothing", None)

    def forward(self, x):
        self.calls = self.calls + 1
        return self.norm(x) * self.calls


def drawn():
    return [torch.rand(2).tolist(), random.random(), np.random.rand()]


def test_random_numbers_are_those_of_the_state():
    """Numbers of torch, Python and NumPy; states compare by their content."""
    before = RandomState.now(("cpu", PYTHON))
    assert before == RandomState.now(("cpu", PYTHON))
    first = drawn()
    assert before != RandomState.now(("cpu", PYTHON))
    before.restore()
    assert drawn() == first
    torch_alone = RandomState.now(("cpu",))
    random.random()
    assert torch_alone == RandomState.now(("cpu",))
    np.random.rand()
    assert RandomState.now((PYTHON,)) != before


def test_a_model_on_the_cpu_draws_from_the_cpu():
    """Every generator is named once, the CPU's always."""
    assert generators(nn.Linear(2, 2)) == ("cpu",)


def test_statistics_stay_and_the_output_is_the_same():
    """To the bit, in training; in evaluation nothing is switched."""
    model, x = Counter(), torch.randn(4, 3)
    want = nn.BatchNorm1d(3)(x)
    with frozen_statistics((model, model)):
        assert torch.equal(model.norm(x), want)
    assert model.norm.num_batches_tracked == 0
    assert not model.norm.running_mean.any()
    assert model.norm.track_running_stats
    model.eval()
    with frozen_statistics((model,)):
        assert model.norm.track_running_stats


def test_buffers_besides_statistics_are_found_and_what_changes_is_told():
    """Once each, missing ones left out."""
    model = Counter()
    found = other_buffers((model, model.norm, model))
    assert [(module, name) for module, name, _ in found] == [(model, "calls")]
    before = copies(found)
    assert changed_buffers(before) == []
    model(torch.randn(4, 3))
    assert changed_buffers(before) == [(model, "calls")]
    model._buffers["calls"] = None
    assert changed_buffers(before) == [(model, "calls")]


def test_a_repeat_sees_the_buffers_as_they_were():
    """And leaves the present ones alone."""
    model, x = Counter(), torch.randn(4, 3)
    snapshot = copies(other_buffers((model,)))
    model(x)
    now = model.calls
    for _ in range(2):
        with replaced_buffers(snapshot):
            assert model.calls == 0
            model(x)
            assert model.calls == 1
    assert model.calls is now
    assert snapshot[0][2] == 0


def test_what_was_tried_leaves_no_trace():
    """Buffers, replaced ones too, and all generators; also where it fails."""
    model, loss = Counter(), nn.BatchNorm1d(3)
    kept = {id(b) for b in (*model.buffers(), *loss.buffers())}
    before, state = (
        [b.clone() for b in (*model.buffers(), *loss.buffers())],
        RandomState.now(("cpu", PYTHON)),
    )

    def tried():
        with untouched(model, loss):
            loss(model(torch.randn(4, 3)))
            drawn()
            raise KeyError

    with pytest.raises(KeyError):
        tried()
    after = [*model.buffers(), *loss.buffers()]
    assert all(map(torch.equal, before, after))
    assert {id(b) for b in after} == kept
    assert RandomState.now(("cpu", PYTHON)) == state


def test_buffers_that_a_forward_enlarges_are_put_back():
    """As those of an observer of ranges by channel, which are empty until the first batch."""
    model = nn.Module()
    model.register_buffer("least", torch.empty(0))
    model.register_buffer("scale", torch.ones(1))
    buffers = [model.least, model.scale]
    with untouched(model):
        model.least.resize_(4).fill_(2)
        model.scale.resize_(4).fill_(2)
    assert [model.least.tolist(), model.scale.tolist()] == [[], [1]]
    assert all(now is then for now, then in zip(model.buffers(), buffers, strict=True))


def test_equal_to_the_bit_and_nearly_equal():
    """Not-a-numbers agree with themselves; shapes and formats count."""
    nan = torch.tensor([1.0, float("nan")])
    assert same_values(nan, nan.clone())
    assert not same_values(nan, torch.tensor([float("nan"), 1.0]))
    assert not same_values(torch.ones(2), torch.ones(2, 1))
    assert not same_values(torch.ones(2), torch.ones(2).double())
    assert not same_values(torch.ones(1), torch.ones(1) + 1e-6)
    assert nearly_equal(torch.ones(1), torch.ones(1) + 1e-6)
    assert not nearly_equal(torch.ones(1), torch.ones(1) * 1.1)
    assert nearly_equal(nan, nan.clone())
    assert not nearly_equal(torch.tensor([1000]), torch.tensor([1001]))


def test_a_generator_that_a_module_holds_draws_nothing_twice():
    """Planning runs a forward: the loop's first step draws what it would have drawn."""
    model, x = nn.Sequential(nn.Linear(2, 2)), torch.zeros(3)
    model[0].noise = torch.Generator().manual_seed(5)
    with untouched(model):
        first = torch.rand(x.shape, generator=model[0].noise)
    assert torch.equal(torch.rand(x.shape, generator=model[0].noise), first)

"""One real forward, noted: what it asks, draws, writes and leaves behind; and all put back."""

from __future__ import annotations

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.guards.recording import (  # noqa: E402
    detached_copies,
    drawn,
    kept_generators,
    kept_python,
    python_generators,
    record,
    restore_python_generators,
)
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim.errors import UnsupportedError  # noqa: E402


class Step(nn.Module):
    """Does `what` in its forward, beside a linear layer with statistics."""

    def __init__(self, what=lambda self, x: None):
        super().__init__()
        self.linear, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)
        self.what, self.log, self.count, self.cache = what, [], 0, None

    def forward(self, x):
        self.what(self, x)
        return self.norm(self.linear(x))


def recorded(what=lambda self, x: None, **attributes):
    model, x = Step(what), torch.randn(4, 3)
    for name, value in attributes.items():
        setattr(model, name, value)
    found = record(model, None, (x,), {}, lambda inputs, keywords: model(*inputs, **keywords).sum())
    return found, model


def test_a_step_that_only_computes_leaves_nothing():
    """Neither do its statistics move, nor the generators."""
    model, x = Step(lambda self, x: nn.functional.dropout(x)), torch.randn(4, 3)
    before, state = python_generators(), torch.get_rng_state()
    found = record(model, None, (x,), {}, lambda inputs, keywords: model(*inputs).sum())
    assert (found.effects, found.draws, found.questions, found.settles) == ((), (), (), False)
    assert model.norm.num_batches_tracked == 0
    assert torch.equal(torch.get_rng_state(), state)
    assert drawn(before) == []
    found.refuse_graph()


def test_what_it_leaves_in_python_is_told_and_put_back():
    """A graph would lose it: refused, with what it is."""

    def what(self, x):
        self.count += 1
        self.log.append(1)

    found, model = recorded(what)
    assert any("count is 1 instead of 0" in line for line in found.effects)
    assert (model.count, model.log) == (0, [])
    assert not found.settles
    with pytest.raises(
        UnsupportedError, match=r"changes what Python holds.*: .*(log|count)"
    ) as caught:
        found.refuse_graph()
    assert "level='block'" in caught.value.hint


def test_what_the_first_run_sets_up_settles():
    """A cache: the second run changes nothing; with it, or without it, as asked."""

    def what(self, x):
        if self.cache is None:
            self.cache = (5,)

    found, model = recorded(what)
    assert found.settles
    assert model.cache is None
    found.refuse_graph()
    with found.settled():
        assert model.cache == (5,)
    assert model.cache is None


@pytest.mark.parametrize(
    ("draw", "says"),
    [
        (lambda self, x: random.random(), "Python's random"),
        (lambda self, x: np.random.rand(), "NumPy's generator"),
    ],
)
def test_numbers_drawn_outside_of_torch_are_refused(draw, says):
    """A graph would freeze them; the generators go back."""
    before = python_generators()
    found, _ = recorded(draw)
    assert found.draws == (says,)
    assert drawn(before) == []
    with pytest.raises(UnsupportedError, match=f"draws numbers from {says}"):
        found.refuse_graph()


def test_questions_are_kept_with_their_answers():
    """Whole numbers and truths may be; a measured number will be another one in each step."""
    found, _ = recorded(lambda self, x: bool((x < 100).all()))
    assert [question.answer for question in found.questions] == [True]
    found.refuse_graph()
    found, _ = recorded(lambda self, x: x.sum().item())
    with pytest.raises(UnsupportedError, match=r"of a tensor is .* in this step, and likely"):
        found.refuse_graph()


def test_tensors_written_in_place_are_put_back_and_told():
    """One that is no buffer is an effect; what the step made itself is none."""

    def what(self, x):
        self.plain.add_(1)
        torch.zeros(3).add_(1)

    plain = torch.zeros(2)
    found, _ = recorded(what, plain=plain)
    assert plain.tolist() == [0, 0]
    assert any("plain is written in place, and is no buffer" in line for line in found.effects)
    assert plain in [tensor for tensor in found.written if tensor.shape == plain.shape]
    view = torch.zeros(4)
    found, _ = recorded(what, plain=view[1:3])
    assert not view.any()


@pytest.mark.parametrize("buffer", [True, False])
def test_tensors_that_a_forward_enlarges_are_put_back(buffer):
    """Content and size; what comes after them in putting back is put back too."""

    def what(self, x):
        self.count += 1
        self.grows.resize_(3).fill_(5)

    grows = torch.ones(1)
    model, x = Step(what), torch.randn(4, 3)
    if buffer:
        model.register_buffer("grows", grows)
    else:
        model.grows = grows
    record(model, None, (x,), {}, lambda inputs, keywords: model(*inputs, **keywords).sum())
    assert (grows.tolist(), model.count) == ([1], 0)


def test_data_that_is_replaced_is_put_back_and_told():
    """The tensor is the same object, with the same version: only its place in memory tells."""

    def what(self, x):
        self.linear.weight.data = self.linear.weight.data * 0.5

    linear = nn.Linear(3, 3)
    content, place = linear.weight.detach().clone(), linear.weight.data_ptr()
    found, _ = recorded(what, linear=linear)
    assert torch.equal(linear.weight, content)
    assert linear.weight.data_ptr() == place
    assert [id(tensor) for tensor in found.moved] == [id(linear.weight)]
    with pytest.raises(UnsupportedError, match=r"model\.linear\.weight is given other data"):
        found.refuse_graph()


def test_what_hooks_of_a_backward_change_is_reached_and_put_back():
    """Hooks of modules and of tensors, which no forward calls."""

    def note(gradient):
        linear.noted = 1

    def count(*given):
        linear.counted = 1

    def what(self, x):
        x.requires_grad_().register_hook(note)

    linear = nn.Linear(3, 3)
    linear.noted = linear.counted = 0
    linear.register_full_backward_hook(count)
    found, _ = recorded(what, linear=linear)
    assert {"noted", "counted"} <= found.reach.names
    with kept_python(found):
        linear.noted, linear.counted = 1, 2
    assert (linear.noted, linear.counted) == (0, 0)


def test_iterators_are_refused():
    """Planning would use up their items."""
    with pytest.raises(UnsupportedError, match=r"can read an iterator, model\.data") as caught:
        recorded(lambda self, x: next(self.data), data=iter([1, 2, 3]))
    assert "inputs" in caught.value.hint


def test_python_is_kept_around_steps():
    """Generators and the places of the effects; also where a step fails."""

    def what(self, x):
        self.count += 1

    found, model = recorded(what)
    before = python_generators()

    def steps():
        with kept_python(found):
            model(torch.randn(4, 3))
            random.random()
            raise KeyError

    with pytest.raises(KeyError):
        steps()
    assert model.count == 0
    assert drawn(before) == []
    one = random.random()
    restore_python_generators(before)
    assert random.random() == one


def test_copies_of_inputs_are_detached():
    """And require what these did; other things stay."""
    x = torch.randn(2, requires_grad=True)
    copied = detached_copies({"x": x, "y": [x * 2, 3]})
    assert copied["x"].is_leaf
    assert copied["x"].requires_grad
    assert copied["x"].data_ptr() != x.data_ptr()
    assert copied["y"][0].requires_grad
    assert copied["y"][0].grad_fn is None
    assert copied["y"][1] == 3


def test_what_is_given_twice_is_one_tensor_in_a_copy_too():
    """Inputs that are the labels as well: code may ask, and Dynamo guards on it."""
    x, y = torch.randn(2), torch.randn(2, requires_grad=True)
    copies = detached_copies({"inputs": x, "labels": x, "other": [y]})
    assert copies["inputs"] is copies["labels"]
    assert copies["inputs"] is not x
    assert copies["other"][0].requires_grad
    assert torch.equal(copies["other"][0], y)


def test_generators_of_the_loss_stand_where_they_stood():
    """In a global, a closure or a container; planning by blocks times the loss many times."""
    held = {"noise": [torch.Generator().manual_seed(3)]}
    numpy_own = np.random.default_rng(4)

    def loss(y):
        noise = torch.rand(y.shape, generator=held["noise"][0]) * numpy_own.random()
        return (y - noise).square().mean()

    before = held["noise"][0].get_state(), numpy_own.bit_generator.state
    with kept_generators(nn.Linear(2, 2), loss, None):
        loss(torch.zeros(2, 2))
        assert not torch.equal(held["noise"][0].get_state(), before[0])
    assert torch.equal(held["noise"][0].get_state(), before[0])
    assert numpy_own.bit_generator.state == before[1]


class HoldsWeight(nn.Module):
    """With a weight in a list, which is therefore no parameter."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.weights = [torch.ones(16, requires_grad=True)]

    def forward(self, x):
        return torch.tanh(self.linear(x) * self.weights[0])


class Weighted:
    """Its loss has a weight that is trained, and reads a teacher that is not."""

    def __init__(self):
        self.log_scale = torch.zeros((), requires_grad=True)
        self.teacher = nn.Linear(16, 16)

    def loss(self, y, x):
        with torch.no_grad():
            target = self.teacher(x)
        return (y - target).square().mean() * self.log_scale.exp()


@pytest.mark.parametrize("level", ["op", "block"])
def test_what_is_trained_beside_parameters_is_refused(level):
    """A plan would give it no gradient; a teacher without gradients is nothing of the kind."""
    line, x = nn.Sequential(*(nn.Linear(16, 16) for _ in range(3))), torch.randn(8, 16)
    weighted = Weighted()
    options = {"budget": "100%", "level": level, "effort": 0.1}
    holding = nn.Sequential(HoldsWeight(), *line)
    with pytest.raises(UnsupportedError, match=r"trains model.0.weights\[0\], which is") as error:
        schedsim.rematerialize(holding, (x, x), loss=nn.functional.mse_loss, **options)
    assert "nn.Module" in error.value.hint
    with pytest.raises(UnsupportedError, match=r"trains loss\.__self__\.log_scale"):
        schedsim.rematerialize(line, (x, x), loss=weighted.loss, **options)
    weighted.log_scale.requires_grad_(False)
    step = schedsim.rematerialize(line, (x, x), loss=weighted.loss, **options)
    step(x, x).backward()
    found = [p.grad.clone() for p in line.parameters()]
    line.zero_grad()
    weighted.loss(line(x), x).backward()
    assert all(map(torch.equal, found, [p.grad for p in line.parameters()]))


@pytest.mark.slow
def test_in_place_gives_it_the_gradient_of_the_loop_alone():
    """None of the steps that plan and compare."""
    model, plain, x = HoldsWeight(), HoldsWeight(), torch.randn(64, 16)
    plain.load_state_dict(model.state_dict())
    schedsim.rematerialize(model, x, "100%", in_place=True, effort=0.1)
    assert model.weights[0].grad is None
    for net in (model, plain):
        net(x).square().mean().backward()
    assert torch.equal(model.weights[0].grad, plain.weights[0].grad)

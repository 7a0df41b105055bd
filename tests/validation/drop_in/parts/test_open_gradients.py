"""Gradients of graphs whose sizes are open: in other strides than traced, or none."""

from __future__ import annotations

import copy
import gc
import warnings
import weakref

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.guards.plan_variants import RoundingWarning  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402

import schedsim  # noqa: E402

NUM_WORDS, LENGTHS = 20, (12, 12, 9, 14)


class Tagger(nn.Module):
    """Two heads, of which a loss may read one."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(NUM_WORDS, 16)
        self.words, self.tags = nn.Linear(16, NUM_WORDS), nn.Linear(16, 4)

    def forward(self, words):
        # Not contiguous, as the output of a recurrent layer: the bias is added by an op of its own.
        hidden = torch.tanh(self.embed(words)).transpose(0, 1).contiguous().transpose(0, 1)
        return self.words(hidden), self.tags(hidden)


def train(call, model, loss):
    """Gradients of every step, parameters behind the last, and lines on rounding."""
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    gradients = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for length in LENGTHS:
            words = torch.randint(0, NUM_WORDS, (8, length))
            loss(call(words)[0], words.roll(1, 1)).backward()
            gradients += [p.grad for p in model.parameters()]
            optimizer.step()
            optimizer.zero_grad()
    lines = [str(one.message) for one in said if one.category is RoundingWarning]
    return gradients, list(model.parameters()), lines


def within(model, way):
    torch._dynamo.reset()
    if way == "backend":
        options = {"budget": "1GB", "effort": 0.1}
        return torch.compile(model, backend="schedsim", options=options)
    words = torch.zeros(8, LENGTHS[0], dtype=torch.long)
    return schedsim.rematerialize(model, words, "1GB", in_place=True, effort=0.1)


def flat(output, target):
    return cross_entropy(output.flatten(0, 1), target.flatten())


def transposed(output, target):
    return cross_entropy(output.transpose(1, 2), target)


def both(way, loss):
    """What `train` returns of the plain model, and of its twin within a budget."""
    torch.manual_seed(0)
    plain = Tagger()
    model = copy.deepcopy(plain)
    return train(plain, plain, loss), train(within(model, way), model, loss)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["in place", "backend"])
def test_what_only_lacking_gradients_reach_gets_none(way):
    """Zeros would let weight decay shrink it, without a word, from the second length on."""
    (gradients, parameters, _), (found, trained, lines) = both(way, flat)
    assert [it is None for it in found] == [it is None for it in gradients]
    assert all(map(torch.equal, trained, parameters))
    assert lines == []


@pytest.mark.slow
def test_outputs_are_freed_where_the_loop_drops_them():
    """Without the collector of cycles: what watches a backward does not hold its outputs."""
    model = Tagger()
    call = within(model, "backend")
    for length in LENGTHS:
        sum(it.square().mean() for it in call(torch.zeros(8, length, dtype=torch.long))).backward()
    gc.collect()
    gc.disable()
    try:
        outputs = call(torch.zeros(8, LENGTHS[-1], dtype=torch.long))
        watched = [weakref.ref(it) for it in outputs]
        outputs[0].sum().backward()
        del outputs
        assert [it() for it in watched] == [None, None]
    finally:
        gc.enable()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["in place", "backend"])
def test_gradients_in_other_strides_are_told_of(way):
    """They are copied before the backward sees them: sums in another order have other last bits."""
    (_, parameters, _), (_, trained, lines) = both(way, transposed)
    assert all(map(torch.allclose, trained, parameters))
    [line] = lines
    assert "in other strides than its outputs have" in line

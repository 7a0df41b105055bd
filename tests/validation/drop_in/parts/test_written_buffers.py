"""Buffers that code behind a graph may write before the backward of the graph runs."""

from __future__ import annotations

import torch
from schedsim.validation.capture import capture
from schedsim.validation.drop_in.parts.written_buffers import WrittenBuffers, readers
from torch import nn


def test_all_are_taken_to_be_written_until_a_step_has_told():
    """What a step wrote stays; who asked is told of each change, and of nothing else."""
    buffers = WrittenBuffers({1: "queue", 3: "mean"})
    told = []
    buffers.tell(lambda: told.append(buffers.taken))
    assert buffers.taken == {1, 3}
    assert buffers.hope()
    assert not buffers.hope()
    assert buffers.learn(frozenset({1}))
    assert not buffers.learn(frozenset())  # a step that writes nothing takes nothing back
    assert not buffers.hope()
    assert told == [frozenset(), {1}]


def test_what_was_written_since_a_forward_met_it():
    queue, mean = torch.zeros(3), torch.zeros(2)
    buffers = WrittenBuffers({1: "queue", 3: "mean"})
    met = buffers.met([0, 7, 0, 9], {7: queue, 9: mean})
    assert buffers.written_since(met) == frozenset()
    queue.add_(1)
    assert buffers.written_since(met) == {1}
    del mean  # a buffer that is gone was not written
    assert buffers.written_since(met) == {1}


def test_a_buffer_of_inference_has_no_version():
    with torch.inference_mode():
        queue = torch.zeros(3)
    assert WrittenBuffers({0: "queue"}).met([4], {4: queue}) == ()


class Queue(nn.Module):
    """Multiplies by a buffer, of which it reads a view."""

    def __init__(self):
        super().__init__()
        self.register_buffer("queue", torch.ones(4, 4))
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return (self.linear(x) @ self.queue.t()).sum()


def test_readers_of_a_buffer_read_its_views_too():
    program = capture(Queue(), (torch.randn(2, 4),)).program
    [queue] = program.buffers.values()
    [product] = readers(program, [queue])
    assert product.startswith("mm")
    assert readers(program, []) == frozenset()

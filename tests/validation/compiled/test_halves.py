"""What stays in front of the backward, or behind its beginning, in any order of first runs."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.capture import capture  # noqa: E402
from schedsim.validation.capture.to_graph import to_graph  # noqa: E402
from schedsim.validation.compiled.halves import keep_halves  # noqa: E402
from schedsim.validation.drop_in.parts.written_buffers import readers  # noqa: E402
from torch import nn  # noqa: E402


class Queue(nn.Module):
    """Multiplies by a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("queue", torch.ones(4, 4))
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(x)
        return (y @ self.queue.t()).sum() + y.square().sum()


def in_front(program):
    """Names of the ops that the op between the halves waits for."""
    calls = program.calls
    return {calls[i].name for i in calls[program.seed].tokens}


def test_what_reads_a_buffer_that_may_be_written_runs_in_front():
    program = capture(Queue(), (torch.randn(2, 4),)).program
    [queue] = program.buffers.values()
    [product] = readers(program, [queue])
    before = in_front(program)
    keep_halves(program)
    assert in_front(program) == before
    keep_halves(program, {queue})
    keep_halves(program, {queue})
    assert in_front(program) - before == {product}
    graph = to_graph(program, "queue", 0)
    seed = graph.ops[graph.op_index(program.calls[program.seed].name)]
    token = next(name for name in seed.reads if product in name)
    assert graph.ops[graph.op_index(product)].writes[token] == 0


def test_what_has_effects_stays_in_its_half():
    program = capture(Queue(), (torch.randn(2, 4),)).program
    calls, seed = program.calls, program.seed
    front = next(i for i in range(seed) if not calls[i].is_view)
    behind = next(i for i in range(seed + 1, len(calls)) if not calls[i].is_view)
    calls[front].random = calls[behind].once = True
    keep_halves(program)
    assert calls[front].name in in_front(program)
    assert seed in calls[behind].tokens

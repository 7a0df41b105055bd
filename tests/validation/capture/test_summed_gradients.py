"""A step of a micro-batch adds each gradient to a sum where it is made."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.capture import capture  # noqa: E402
from schedsim.validation.capture.summed_gradients import with_summed_gradients  # noqa: E402
from schedsim.validation.capture.to_graph import result_storages  # noqa: E402
from torch import nn  # noqa: E402

from schedsim import Schedule, simulate  # noqa: E402


class Scaled(nn.Module):
    """A loss with a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(2.0))

    def forward(self, y):
        """The scaled mean."""
        return self.factor * y.mean()


def wide(loss):
    """Wide layers on few rows, whose gradients are most of the memory; and the same with sums."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(4)))
    return model, [capture(model, (torch.randn(2, 32),), loss) for _ in range(2)]


def peak(captured):
    """Of its own order."""
    graph = captured.graph
    return simulate(graph, Schedule(graph.op_names, range(graph.num_ops))).peak_bytes


def test_one_gradient_is_there_at_a_time():
    """The sums are somebody else's bytes; a weight takes 4096."""
    _, (plain, other) = wide(lambda y: y.mean())
    summed = with_summed_gradients(other)
    program = summed.program
    assert not program.gradients
    assert len(program.sums) == 8
    held = [*program.inputs.values(), *program.held]
    assert set(result_storages(program)) == {program.values[v].storage for v in held}
    assert peak(plain) - peak(summed) > 3 * 4096 - 1024
    adds = [call for call in program.calls if call.name.endswith(".add")]
    assert [call.once for call in adds] == [True] * 8


def test_gradients_of_the_loss_are_handed_over():
    """Nobody sums them up in the model's place."""
    model, (captured, _) = wide(Scaled())
    summed = with_summed_gradients(captured)
    assert list(summed.program.gradients) == ["loss_function.factor"]
    graph = summed.graph
    module = summed.module(Schedule(graph.op_names, range(graph.num_ops)))
    module.sums = {p: torch.full_like(p, 1.0) for p in module.summed}
    x = torch.randn(2, 32)
    module(x).backward()
    assert all(p.grad is None for p in model.parameters())
    expected = torch.autograd.grad(2.0 * model(x).mean(), list(model.parameters()))
    for p, gradient in zip(model.parameters(), expected, strict=True):
        assert torch.equal(module.sums[p], gradient.add_(1.0))
    torch.testing.assert_close(module.loss_function.factor.grad, model(x).mean())

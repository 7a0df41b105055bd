"""The gates of a GRU's cell as one op: the bits of torch's own, forward and backward."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.capture.gru_cells import has_gru_cells, whole_gru_gates  # noqa: E402
from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402


def trained(cell, x, start):
    """The last of three states, and gradients of the inputs, the first state and all weights."""
    cell.zero_grad()
    x = x.detach().requires_grad_()
    start = None if start is None else start.detach().requires_grad_()
    state = start
    for step in x:
        state = cell(step, state)
    state.square().sum().backward()
    given = [x.grad] if start is None else [x.grad, start.grad]
    return [state.detach(), *given, *(p.grad for p in cell.parameters())]


@pytest.mark.parametrize("starts", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(2, 3), (17, 3), (3,)])
def test_states_and_gradients_are_to_the_bit(shape, bias, starts):
    """From zeros and from a given state, with and without biases and a batch."""
    torch.manual_seed(0)
    cell, x = nn.GRUCell(3, 5, bias=bias), torch.randn(3, *shape)
    start = torch.randn(*shape[:-1], 5) if starts else None
    plain = trained(cell, x, start)
    with whole_gru_gates():
        whole = trained(cell, x, start)
    assert len(plain) == len(whole)
    assert all(map(torch.equal, plain, whole))


def test_shapes_on_fakes_are_those_of_real_runs():
    """Forward and backward, so that the graph charges what is really there."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    cell, x = nn.GRUCell(3, 5), torch.randn(2, 3, requires_grad=True)
    gates, state = torch.randn(2, 15), torch.randn(2, 5)
    given = (state, gates, gates, state)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, whole_gru_gates():
        fakes = [*torch.ops.schedsim.gru_gates_backward(*map(mode.from_tensor, given)), cell(x)]
    with whole_gru_gates():
        found = [*torch.ops.schedsim.gru_gates_backward(*given), cell(x)]
    assert [(f.shape, f.stride()) for f in fakes] == [(f.shape, f.stride()) for f in found]


class Decoder(nn.Module):
    """Reads by a cell, with a residual path, whose gradients meet those of the cell."""

    def __init__(self) -> None:
        super().__init__()
        self.read = nn.Linear(6, 8)
        self.cell = nn.GRUCell(8, 8)
        self.write = nn.Linear(8, 6)

    def forward(self, x):
        state = torch.zeros(x.shape[0], 8)
        for step in x.unbind(1):
            state = self.cell(torch.relu(self.read(step)), state) + state
        return self.write(state)


def loss_of(out, target):
    return (out - target).square().mean()


@pytest.mark.slow
@pytest.mark.parametrize("in_place", [False, True])
def test_a_planned_step_with_cells_is_the_plain_one(in_place):
    """Losses and gradients of two steps, to the bit."""
    torch.manual_seed(2)
    x, target, found = torch.randn(16, 5, 6), torch.randn(16, 6), []
    for planned in (False, True):
        torch.manual_seed(3)
        step = model = Decoder()
        if planned and in_place:
            schedsim.rematerialize(model, (x,), "90%", in_place=True, effort=0.1)
            (part,) = session_in(model).parts
            assert any("gru_gates" in str(call.target) for call in part.program.calls)
        elif planned:
            step = schedsim.rematerialize(model, (x, target), "90%", loss=loss_of, effort=0.1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        found.append([])
        for _ in range(2):
            loss = step(x, target) if planned and not in_place else loss_of(step(x), target)
            loss.backward()
            found[-1] += [loss.detach(), *(p.grad.clone() for p in model.parameters())]
            optimizer.step()
            optimizer.zero_grad()
    assert all(map(torch.equal, *found))


def test_cells_elsewhere_than_on_the_cpu_stay_torchs_own():
    """Where there is none, there is nothing to take as an op, either."""
    assert has_gru_cells(nn.Sequential(nn.GRUCell(2, 2)))
    assert not has_gru_cells(nn.GRUCell(2, 2, device="meta"))
    assert not has_gru_cells(nn.LSTMCell(2, 2))

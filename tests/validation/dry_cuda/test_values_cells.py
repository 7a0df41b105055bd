"""CUDA's fused cells as arithmetic: torch's own cells, forward and backward."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.dry_cuda.values_cells import (  # noqa: E402
    gru_cell,
    gru_cell_backward,
    lstm_cell,
    lstm_cell_backward,
)
from torch import nn  # noqa: E402


def cell_of(kind, bias: bool):
    """A cell in double precision, with an input, a state, and the products of both."""
    torch.manual_seed(0)
    cell = kind(3, 5, bias=bias).double()
    x, h = torch.randn(4, 3).double(), torch.randn(4, 5).double()
    a, b = (one.detach().requires_grad_() for one in (x @ cell.weight_ih.T, h @ cell.weight_hh.T))
    biases = (cell.bias_ih, cell.bias_hh) if bias else (None, None)
    return cell, x, h, a, b, biases


@pytest.mark.parametrize("bias", [True, False])
def test_the_lstm_cell_is_torchs(bias):
    """Both states; then the gradients of the gates, of the cell and of the biases, by autograd."""
    cell, x, h, a, b, biases = cell_of(nn.LSTMCell, bias)
    c = torch.randn(4, 5).double().requires_grad_()
    hy, cy, kept = lstm_cell(a, b, c, *biases)
    for found, want in zip((hy, cy), cell(x, (h, c)), strict=True):
        torch.testing.assert_close(found, want)
    grads = torch.randn(4, 5).double(), torch.randn(4, 5).double()
    wanted = [a, c, *(biases[:1] if bias else ())]
    expected = torch.autograd.grad([hy, cy], wanted, grads, retain_graph=True)
    found = lstm_cell_backward(*grads, c, cy, kept, bias)
    for one, two in zip(found, expected, strict=False):
        torch.testing.assert_close(one, two)
    assert (found[2] is None) == (not bias)
    # Gradients of one state alone, as CUDA gives them.
    for place in (0, 1):
        alone = [None, None]
        alone[place] = grads[place]
        only = torch.autograd.grad([(hy, cy)[place]], [a, c], [grads[place]], retain_graph=True)
        found = lstm_cell_backward(*alone, c, cy, kept, bias)
        for one, two in zip(found, only, strict=False):
            torch.testing.assert_close(one, two)


@pytest.mark.parametrize("bias", [True, False])
def test_the_gru_cell_is_torchs(bias):
    """The state; then the gradients of both products, of the state and of the biases."""
    cell, x, h, a, b, biases = cell_of(nn.GRUCell, bias)
    hx = h.detach().requires_grad_()
    hy, kept = gru_cell(a, b, hx, *biases)
    torch.testing.assert_close(hy, cell(x, h))
    grad = torch.randn(4, 5).double()
    expected = torch.autograd.grad([hy], [a, b, hx, *(biases if bias else ())], [grad])
    found = gru_cell_backward(grad, kept, bias)
    for one, two in zip(found, expected, strict=False):
        torch.testing.assert_close(one, two)
    assert [one is None for one in found[3:]] == [not bias] * 2

"""Feed-forward layers over chunks of the tokens: the layer's, within rounding."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.ways.chunked_mlp import in_chunks  # noqa: E402
from torch import nn  # noqa: E402


def layer(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 16), nn.GELU(), nn.Dropout(dropout), nn.Linear(16, 4)
    ).double()


def stepped(mlp, function, x):
    """Output, and the gradients of the input and of all parameters."""
    mlp.zero_grad()
    x = x.detach().requires_grad_()
    torch.manual_seed(5)
    out = function(x)
    (out * torch.arange(out.numel()).view_as(out)).sum().backward()
    return [out.detach(), x.grad, *(p.grad for p in mlp.parameters()), torch.rand(3)]


@pytest.mark.parametrize("unrolled", [True, False])
@pytest.mark.parametrize("num_chunks", [1, 3, 10, 64])
def test_chunks_of_the_tokens_are_the_whole(num_chunks, unrolled):
    """Uneven parts and more parts than tokens among them; any leading dimensions."""
    mlp, x = layer(), torch.randn(2, 5, 6).double()
    parameters = tuple(mlp.parameters())
    whole = stepped(mlp, mlp, x)
    parts = stepped(mlp, lambda x: in_chunks(mlp, x, parameters, num_chunks, unrolled), x)
    assert parts[0].shape == (2, 5, 4)
    for one, two in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, two)


def test_recomputed_chunks_drop_out_what_they_dropped():
    """The gradient is that of the output that was given, and the generator goes on as it was."""
    mlp, x = layer(0.5), torch.randn(9, 6).double()
    parameters = tuple(mlp.parameters())
    found = stepped(mlp, lambda x: in_chunks(mlp, x, parameters, 4, False), x)
    kept = stepped(mlp, lambda x: in_chunks(mlp, x, parameters, 4, True), x)
    for one, two in zip(found, kept, strict=True):
        torch.testing.assert_close(one, two)


def test_one_keeps_its_input_alone():
    """The other keeps what its parts keep, which the planner then sees."""
    mlp, x = layer(), torch.randn(9, 6).double().requires_grad_()
    sizes = []
    for unrolled in (True, False):
        seen: list[int] = []

        def pack(tensor, seen=seen):
            seen.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed):
            in_chunks(mlp, x, tuple(mlp.parameters()), 3, unrolled)
        sizes.append(sum(seen))
    assert sizes[1] == x.numel() < sizes[0]


def test_frozen_parameters_and_inputs_get_nothing():
    """And the others what they would have."""
    mlp, x = layer(), torch.randn(9, 6).double()
    mlp[0].weight.requires_grad_(False)
    out = in_chunks(mlp, x, tuple(mlp.parameters()), 3, False)
    out.sum().backward()
    found = [p.grad for p in mlp.parameters()]
    mlp.zero_grad()
    mlp(x).sum().backward()
    assert found[0] is None
    for one, two in zip(found[1:], [p.grad for p in mlp.parameters()][1:], strict=True):
        torch.testing.assert_close(one, two)

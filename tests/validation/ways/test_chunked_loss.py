"""Projection to a vocabulary and cross entropy, chunk by chunk of the tokens, as one op."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402
from schedsim.validation.measure import StorageTracker  # noqa: E402
from schedsim.validation.ways.chunked_loss import chunked_cross_entropy  # noqa: E402
from torch import nn  # noqa: E402


@pytest.mark.parametrize("num_chunks", [1, 2, 5, 64])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("bias", [False, True])
def test_the_chunked_loss_is_cross_entropy_of_a_projection(num_chunks, reduction, bias):
    """One chunk: to the bit. More: gradients of the weights within rounding of sums of tokens."""
    torch.manual_seed(0)
    hidden = torch.randn(13, 8, requires_grad=True)
    linear = nn.Linear(8, 21, bias=bias)
    target = torch.randint(21, (13,))
    target[3] = -100
    parameters = [hidden, *linear.parameters()]
    plain = F.cross_entropy(linear(hidden), target, reduction=reduction)
    expected = torch.autograd.grad(plain * 3, parameters)
    loss = chunked_cross_entropy(
        hidden, linear.weight, linear.bias, target, num_chunks=num_chunks, reduction=reduction
    )
    found = torch.autograd.grad(loss * 3, parameters)
    torch.testing.assert_close(loss, plain)
    for a, b in zip(expected, found, strict=True):
        torch.testing.assert_close(a, b)
    if num_chunks == 1:
        ones = torch.autograd.grad(F.cross_entropy(linear(hidden), target), parameters)
        loss = chunked_cross_entropy(hidden, linear.weight, linear.bias, target, num_chunks=1)
        same = torch.autograd.grad(loss, parameters)
        assert all(map(torch.equal, ones[:2], same[:2]))


def test_all_logits_never_exist():
    tokens, width, classes, chunks = 512, 16, 2048, 8
    hidden = torch.randn(tokens, width, requires_grad=True)
    weight = torch.randn(classes, width, requires_grad=True)
    target = torch.randint(classes, (tokens,))
    with StorageTracker() as tracker:
        tracker.add([hidden, weight, target], "static")
        before = tracker.peak.total_bytes
        chunked_cross_entropy(hidden, weight, None, target, num_chunks=chunks).backward()
    logits = 4 * tokens * classes
    results = 4 * (tokens + classes) * width
    assert tracker.peak.total_bytes - before <= 3 * logits / chunks + results + 64 * tokens
    assert tracker.peak.total_bytes - before < logits


def test_frozen_and_low_precision_weights():
    torch.manual_seed(0)
    hidden = torch.randn(32, 8, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(50, 8, dtype=torch.bfloat16)
    target = torch.randint(50, (32,))
    loss = chunked_cross_entropy(hidden, weight, None, target, num_chunks=4)
    (found,) = torch.autograd.grad(loss, hidden)
    plain = F.cross_entropy((hidden @ weight.T).float(), target)
    (expected,) = torch.autograd.grad(plain, hidden)
    torch.testing.assert_close(loss, plain)
    torch.testing.assert_close(found, expected)

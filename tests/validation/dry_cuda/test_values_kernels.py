"""Kernels of CUDA alone as arithmetic: torch's own functions on the CPU, forward and backward."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402
from schedsim.validation.dry_cuda.values_kernels import SUBSTITUTES  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from schedsim.errors import UnsupportedError  # noqa: E402

aten = torch.ops.aten
EFFICIENT = aten._scaled_dot_product_efficient_attention
FLASH = aten._scaled_dot_product_flash_attention
CUDNN = aten._scaled_dot_product_cudnn_attention


class Inside(TorchDispatchMode):
    """Runs `work` in the place where substitutes run: within the dispatch of an op."""

    def __init__(self, work) -> None:
        super().__init__()
        self.work = work

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is aten.sin.default:
            with torch.no_grad():
                self.found = self.work()
        return function(*args, **(kwargs or {}))


def kernel(packet):
    """The substitute of an op, called as the dry device calls it."""

    def call(*args, **kwargs):
        with Inside(lambda: SUBSTITUTES[packet](*args, **kwargs)) as inside:
            torch.ones(1).sin()
        return inside.found

    return call


def given(heads=4, kv_heads=4, length=6):
    torch.manual_seed(0)
    q = torch.randn(2, heads, length, 8).double()
    k, v = (torch.randn(2, kv_heads, length, 8).double() for _ in range(2))
    return [one.requires_grad_() for one in (q, k, v)]


def backward(packet):
    return kernel(getattr(aten, f"{packet.__name__}_backward"))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_attention_is_torchs(causal, scale):
    """All three kernels: output, log-sum-exp, and the gradients of query, key and value."""
    q, k, v = given()
    want = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)
    grad = torch.randn_like(want)
    expected = torch.autograd.grad(want, [q, k, v], grad)
    scores = q @ k.transpose(-1, -2) * (8**-0.5 if scale is None else scale)
    if causal:
        scores = scores.masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf)
    kept = {"scale": scale, "seed": 5}
    out, lse, seed, _ = kernel(EFFICIENT)(q, k, v, None, True, 0.0, causal, **kept)
    torch.testing.assert_close(out, want)
    torch.testing.assert_close(lse, scores.logsumexp(-1))
    wanted = [True, True, True, False]
    args = (grad, q, k, v, None, out, lse, seed, seed, 0.0, wanted, causal)
    found = backward(EFFICIENT)(*args, scale=scale)
    assert found[3] is None
    for one, two in zip(found, expected, strict=False):
        torch.testing.assert_close(one, two)
    flash = kernel(FLASH)(q, k, v, 0.0, causal, **kept)
    torch.testing.assert_close(flash[0], want)
    args = (grad, q, k, v, flash[0], flash[1], None, None, 6, 6, 0.0, causal, flash[6])
    for one, two in zip(backward(FLASH)(*args, scale=scale), expected, strict=True):
        torch.testing.assert_close(one, two)
    cudnn = kernel(CUDNN)(q, k, v, None, True, 0.0, causal, **kept)
    torch.testing.assert_close(cudnn[0], want)
    state = cudnn[6]
    args = (grad, q, k, v, cudnn[0], cudnn[1], state, state, None, None, None, 6, 6, 0.0, causal)
    for one, two in zip(backward(CUDNN)(*args, scale=scale), expected, strict=True):
        torch.testing.assert_close(one, two)


def test_statistics_are_kept_only_where_they_are_wanted():
    """And biases and grouped keys are as torch has them."""
    q, k, v = given(kv_heads=2)
    bias = torch.randn(2, 4, 6, 6).double()
    out, lse, _, _ = kernel(EFFICIENT)(q, k, v, bias, False, seed=0)
    assert lse is None
    want = F.scaled_dot_product_attention(q, k, v, bias, enable_gqa=True)
    torch.testing.assert_close(out, want)
    with pytest.raises(UnsupportedError, match="gradient of an attention's bias"):
        backward(EFFICIENT)(out, q, k, v, bias, out, lse, None, None, 0.0, [True] * 4)


def test_dropout_in_the_backward_is_that_of_the_forward():
    """By the seed that the forward left: a numerical gradient agrees."""
    q, k, v = (one.detach() for one in given(heads=1, kv_heads=1, length=4))
    forward = kernel(EFFICIENT)
    out, lse, seed, _ = forward(q, k, v, None, True, 0.5, False, seed=11)
    assert torch.equal(out, forward(q, k, v, None, True, 0.5, False, seed=11)[0])
    assert not torch.equal(out, forward(q, k, v, None, True, 0.5, False, seed=12)[0])
    grad = torch.randn_like(out)
    args = (grad, q, k, v, None, out, lse, seed, seed, 0.5, [True] * 3 + [False], False)
    found = backward(EFFICIENT)(*args, seed=99)[2]
    step = torch.zeros_like(v)
    step[0, 0, 1, 2] = 1e-6
    more = forward(q, k, v + step, None, True, 0.5, False, seed=11)[0]
    slope = ((more - out) * grad).sum().item() / 1e-6
    assert found[0, 0, 1, 2].item() == pytest.approx(slope, abs=1e-6)


def test_batch_norm_moves_its_statistics_and_gives_torchs_gradients():
    """In training, in the order of cuDNN's arguments."""
    torch.manual_seed(0)
    x = torch.randn(6, 3).double().requires_grad_()
    norm, other = nn.BatchNorm1d(3).double(), nn.BatchNorm1d(3).double()
    want = other(x)
    args = (norm.weight, norm.bias, norm.running_mean, norm.running_var, True, 0.1, 1e-5)
    out, mean, rstd, _ = kernel(aten.cudnn_batch_norm)(x, *args)
    torch.testing.assert_close(out, want)
    torch.testing.assert_close(norm.running_mean, other.running_mean)
    grad = torch.randn_like(want)
    expected = torch.autograd.grad(want, [x, other.weight, other.bias], grad)
    args = (norm.weight, norm.running_mean, norm.running_var, mean, rstd, 1e-5, None)
    found = kernel(aten.cudnn_batch_norm_backward)(x.detach(), grad, *args)
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two)


MODES = {"relu": 0, "tanh": 1, "lstm": 2, "gru": 3}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", MODES)
def test_recurrent_layers_are_torchs(kind, bias):
    """Two layers both ways; outputs, states, and the gradients of all that is given."""
    torch.manual_seed(0)
    options = {"num_layers": 2, "bidirectional": True, "bias": bias}
    layers = {
        "lstm": lambda: nn.LSTM(3, 5, **options),
        "gru": lambda: nn.GRU(3, 5, **options),
        "tanh": lambda: nn.RNN(3, 5, **options),
        "relu": lambda: nn.RNN(3, 5, nonlinearity="relu", **options),
    }
    layer = layers[kind]().double()
    weights = list(layer._flat_weights)
    x = torch.randn(4, 2, 3).double().requires_grad_()
    h = torch.randn(4, 2, 5).double().requires_grad_()
    c = torch.randn(4, 2, 5).double().requires_grad_() if kind == "lstm" else None
    out, last = layer(x, (h, c) if kind == "lstm" else h)
    last = last if isinstance(last, tuple) else (last,)
    mode = (MODES[kind], 5, 0, 2, False, 0.0, True, True, [], None)
    per_layer = 4 if bias else 2
    found = kernel(aten._cudnn_rnn)(x, weights, per_layer, None, h, c, *mode)
    for one, two in zip(found, (out, *last), strict=False):
        torch.testing.assert_close(one, two)
    grads = [torch.randn_like(one) for one in (out, *last)]
    leaves = [x, h, *([c] if c is not None else []), *weights]
    expected = torch.autograd.grad([out, *last], leaves, grads)
    grads += [None] * (3 - len(grads))
    args = (x, weights, per_layer, None, h, c, out, *grads, *mode, None, [True] * 4)
    back = kernel(aten._cudnn_rnn_backward)(*args)
    flat = [one for one in (*back[:3], *back[3]) if one is not None]
    for one, two in zip(flat, expected, strict=True):
        torch.testing.assert_close(one, two)


def test_what_cannot_be_computed_is_refused():
    """Dropout between cuDNN's layers, packed sequences, projections."""
    x = torch.randn(4, 2, 3)
    for dropout, sizes, per_layer in ((0.5, [], 4), (0.0, [2, 1], 4), (0.0, [], 5)):
        mode = (2, 5, 0, 1, False, dropout, True, False, sizes, None)
        with pytest.raises(UnsupportedError, match="no values for cuDNN") as caught:
            kernel(aten._cudnn_rnn)(x, [], per_layer, None, x, x, *mode)
        assert "--values" in caught.value.hint


@pytest.mark.parametrize("shape", [(8,), (3, 8)])
@pytest.mark.parametrize("weighted", [False, True])
def test_rms_norm_goes_back_as_autograd_does(shape, weighted):
    """Through the formula, written out in ops that autograd knows."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8).double().requires_grad_()
    weight = torch.randn(shape).double().requires_grad_() if weighted else None
    dims = tuple(range(-len(shape), 0))
    rstd = (x.square().mean(dims, keepdim=True) + 1e-6).rsqrt()
    out = x * rstd * (1 if weight is None else weight)
    grad = torch.randn_like(out)
    inputs = [x] if weight is None else [x, weight]
    wanted = torch.autograd.grad(out, inputs, grad)
    found = kernel(aten._fused_rms_norm_backward)(
        grad, x.detach(), list(shape), rstd.detach(), weight, [True, weighted]
    )
    assert (found[1] is None) is not weighted
    for one, other in zip(found, wanted, strict=False):
        torch.testing.assert_close(one, other)
    assert kernel(aten._fused_rms_norm_backward)(
        grad, x.detach(), list(shape), rstd.detach(), weight, [False, False]
    ) == (None, None)

"""Fake results lie as the kernels' own do."""

from __future__ import annotations

import contextlib

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.torch_private.fake_tensors import fake_mode  # noqa: E402
from schedsim.validation.torch_private.kernel_layouts import true_layouts  # noqa: E402

INPUTS = {
    "in order": lambda: torch.randn(4, 3, 5),
    "transposed": lambda: torch.randn(4, 5, 3).transpose(1, 2),
    "matrix, transposed": lambda: torch.randn(3, 4).t(),
    "channels last": lambda: torch.randn(4, 5, 6, 3).permute(0, 3, 1, 2),
    "neither": lambda: torch.randn(5, 4, 6, 3).permute(1, 3, 0, 2),
    "a slice": lambda: torch.randn(4, 3, 10)[:, :, ::2],
}


@pytest.mark.parametrize("form", INPUTS)
@pytest.mark.parametrize("like", [True, False])
def test_batch_norms(form, like):
    """Forward and backward, with a gradient laid out as the result or in order."""

    def strides(x):
        aten, weight = torch.ops.aten, torch.ones(3)
        zeros = torch.zeros(3)
        out = aten._native_batch_norm_legit_functional(x, weight, None, zeros, weight, True, 0.1, 1)
        given = torch.ones_like(out[0]) if like else torch.ones(x.shape)
        back = aten.native_batch_norm_backward(
            given, x, weight, zeros, weight, out[1], out[2], True, 1.0, [True, True, True]
        )
        return [t.stride() for t in (out[0], back[0])]

    x = INPUTS[form]()
    expected = strides(x)
    mode = fake_mode()
    with true_layouts(), mode:
        assert strides(mode.from_tensor(x)) == expected


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
def test_statistics_of_layer_norms_have_the_type_of_the_weight(kind):
    """As under autocast, which leaves the weight in float32: the backward's kernel asks for it."""

    def made(x, weight, bias):
        found = torch.ops.aten.native_layer_norm(x, [4], weight, bias, 1e-5)
        return [(t.shape, t.stride(), t.dtype) for t in found]

    given = torch.randn(2, 4, 4, dtype=kind), torch.randn(4), torch.randn(4)
    mode = fake_mode()
    with true_layouts(), mode:
        faked = made(*map(mode.from_tensor, given))
    assert faked == made(*given)


@pytest.mark.parametrize("form", INPUTS)
def test_backward_of_dropout(form):
    """A product of a gradient in some layout with a mask in order."""

    def strides(gradient, mask):
        return torch.ops.aten.native_dropout_backward(gradient, mask, 1.5).stride()

    gradient = INPUTS[form]()
    mask = torch.ones(gradient.shape, dtype=torch.bool)
    expected = strides(gradient, mask)
    mode = fake_mode()
    with true_layouts(), mode:
        assert strides(*map(mode.from_tensor, (gradient, mask))) == expected


ACTIVATIONS = {
    "hardsigmoid_backward": (),
    "hardswish_backward": (),
    "hardtanh_backward": (-1.0, 1.0),
    "logit_backward": (),
    "softplus_backward": (1.0, 20.0),
}


@pytest.mark.parametrize("form", INPUTS)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_backwards_of_activations(name, form):
    """The gradient in some layout and the input in order, and the other way around."""
    op, more = getattr(torch.ops.aten, name), ACTIVATIONS[name]
    one = INPUTS[form]().sigmoid()
    for given in ((one, one.contiguous()), (one.contiguous(), one)):
        mode = fake_mode()
        with true_layouts(), mode:
            faked = op(*map(mode.from_tensor, given), *more).stride()
        assert faked == op(*given, *more).stride()


@pytest.mark.parametrize("form", INPUTS)
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("mse_loss_backward", (1,)),
        ("smooth_l1_loss_backward", (1, 1.0)),
        ("huber_loss_backward", (1, 1.0)),
        ("_log_softmax_backward_data", (1, torch.float32)),
    ],
)
def test_backwards_of_losses(name, more, form):
    """Of an output in some layout."""
    op, one = getattr(torch.ops.aten, name), INPUTS[form]()
    for other in (one.clone(), one.contiguous()):
        given = (one, other) if name.startswith("_") else (torch.ones(()), one, other)
        mode = fake_mode()
        with true_layouts(), mode:
            faked = op(*map(mode.from_tensor, given), *more).stride()
        assert faked == op(*given, *more).stride()


def backward_of_loss(given, x, target):
    """One whose fake is changed."""
    return torch.ops.aten.mse_loss_backward(given, x, target, 1)


@pytest.mark.parametrize("is_over", [False, True])
def test_who_copies_the_table_of_decompositions_computes_as_before(is_over):
    """Inductor does, when it is first imported: from within a trace it had empty results for good.

    Gradients of whatever the process compiled later were garbage.
    """
    from torch._decomp import decomposition_table
    from torch.fx.experimental.proxy_tensor import make_fx

    op = torch.ops.aten.mse_loss_backward.default
    given = torch.randn(()), torch.randn(4, 3), torch.randn(4, 3)
    with contextlib.ExitStack() as stack:
        stack.enter_context(true_layouts())
        copied = {op: decomposition_table[op]}
        if is_over:
            stack.close()
        traced = make_fx(backward_of_loss, decomposition_table=copied)(*given)
    assert op not in [node.target for node in traced.graph.nodes]
    torch.testing.assert_close(traced(*given), backward_of_loss(*given))
    if is_over:
        torch.testing.assert_close(copied[op](*given, 1), backward_of_loss(*given))

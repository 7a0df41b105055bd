"""Fake results lie as the kernels' own do."""

from __future__ import annotations

import contextlib

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.torch_private.fake_tensors import fake_mode  # noqa: E402
from schedsim.validation.torch_private.kernel_layouts import true_layouts  # noqa: E402
from torch import nn  # noqa: E402

INPUTS = {
    "in order": lambda: torch.randn(4, 3, 5),
    "transposed": lambda: torch.randn(4, 5, 3).transpose(1, 2),
    "matrix, transposed": lambda: torch.randn(3, 4).t(),
    "channels last": lambda: torch.randn(4, 5, 6, 3).permute(0, 3, 1, 2),
    "neither": lambda: torch.randn(5, 4, 6, 3).permute(1, 3, 0, 2),
    "a slice": lambda: torch.randn(4, 3, 10)[:, :, ::2],
}


DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
        ],
    ),
]


@pytest.mark.parametrize("form", INPUTS)
@pytest.mark.parametrize("like", [True, False])
@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("device", DEVICES)
def test_batch_norms(form, like, trains, device):
    """Forward and backward, with a gradient laid out as the result or in order."""

    def strides(x):
        aten, weight = torch.ops.aten, torch.ones(x.shape[1], device=device)
        zeros = torch.zeros(x.shape[1], device=device)
        normalized = aten._native_batch_norm_legit_functional
        out = normalized(x, weight, None, zeros, weight, trains, 0.1, 1)
        given = torch.ones_like(out[0]) if like else torch.ones(x.shape, device=device)
        back = aten.native_batch_norm_backward(
            given, x, weight, zeros, weight, out[1], out[2], trains, 1.0, [True, True, True]
        )
        return [t.stride() for t in (out[0], back[0])]

    x = INPUTS[form]().to(device)
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


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("is_affine", [True, False])
@pytest.mark.parametrize("name", ["native_batch_norm", "_native_batch_norm_legit_functional"])
def test_types_of_batch_norms_are_those_of_the_kernels(name, is_affine, trains):
    """As under autocast: without a weight, statistics have the type of the running ones."""

    def made(x, mean, variance, *affine):
        weight, bias = affine or (None, None)
        op = getattr(torch.ops.aten, name)
        found = op(x, weight, bias, mean, variance, trains, 0.1, 1e-5)
        return [(t.shape, t.stride(), t.dtype) for t in found]

    x = torch.randn(2, 8, 4, 4, dtype=torch.bfloat16)
    given = x, torch.zeros(8), torch.ones(8), *(torch.ones(8) for _ in range(2 * is_affine))
    mode = fake_mode()
    with true_layouts(), mode:
        faked = made(*map(mode.from_tensor, given))
    assert faked == made(*given)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_types_of_group_norms_are_those_of_the_kernels(kind, memory_format):
    """As under autocast: statistics in the type of the weight, a gradient in that of the input."""
    aten = torch.ops.aten

    def made(x, weight, bias):
        out = aten.native_group_norm(x, weight, bias, 2, 8, 16, 4, 1e-5)
        back = aten.native_group_norm_backward(
            out[0], x, out[1], out[2], weight, 2, 8, 16, 4, [True, True, True]
        )
        return [(t.shape, t.stride(), t.dtype) for t in (*out, *back)]

    x = torch.randn(2, 8, 4, 4, dtype=kind).contiguous(memory_format=memory_format)
    given = x, torch.randn(8), torch.randn(8)
    mode = fake_mode()
    with true_layouts(), mode:
        faked = made(*map(mode.from_tensor, given))
    assert faked == made(*given)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", INPUTS)
def test_backward_of_dropout(form, device):
    """A product of a gradient with a mask in order; on CUDA in the gradient's format."""

    def strides(gradient, mask):
        return torch.ops.aten.native_dropout_backward(gradient, mask, 1.5).stride()

    gradient = INPUTS[form]().to(device)
    mask = torch.ones(gradient.shape, dtype=torch.bool, device=device)
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


@pytest.mark.parametrize("device", DEVICES)
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
def test_backwards_of_losses(name, more, form, device):
    """Of an output in some layout."""
    op, one = getattr(torch.ops.aten, name), INPUTS[form]().to(device)
    for other in (one.clone(), one.contiguous()):
        given = (one, other) if name.startswith("_") else (one.sum(), one, other)
        mode = fake_mode()
        with true_layouts(), mode:
            faked = op(*map(mode.from_tensor, given), *more).stride()
        assert faked == op(*given, *more).stride()


aten = torch.ops.aten
ON_BOTH = {
    "hardswish_backward": lambda x: aten.hardswish_backward(x.contiguous(), x),
    "hardtanh_backward": lambda x: aten.hardtanh_backward(x, x.contiguous(), -1.0, 1.0),
    "logit_backward": lambda x: aten.logit_backward(x.contiguous(), x),
    "huber_loss_backward": lambda x: aten.huber_loss_backward(x.sum(), x, x, 1, 1.0),
    "smooth_l1_loss_backward": lambda x: aten.smooth_l1_loss_backward(x.sum(), x, x, 1, 1.0),
    "log_sigmoid_forward": lambda x: aten.log_sigmoid_forward(x)[0],
    "glu_backward": lambda x: aten.glu_backward(x, torch.cat([x, x], -1), -1),
    "glu_backward of a slice": lambda x: aten.glu_backward(x.contiguous(), torch.cat([x, x], 0), 0),
    "bce_backward": lambda x: aten.binary_cross_entropy_backward(x.contiguous(), x, x),
    "bce_backward of another": lambda x: aten.binary_cross_entropy_backward(x, x.contiguous(), x),
    "pow": lambda x: torch.pow(2.0, x),
    "copysign": lambda x: torch.copysign(x, torch.ones((), device=x.device)),
    "div": lambda x: torch.div(x, torch.ones((), device=x.device), rounding_mode="floor"),
    "floor_divide": lambda x: x // torch.ones((), device=x.device),
    "logaddexp": lambda x: torch.logaddexp(x.contiguous()[:1], x),
    "logical_and": lambda x: torch.logical_and(x.contiguous()[:1], x),
    "heaviside": lambda x: torch.heaviside(x.contiguous()[:1], x),
    "xlogy": lambda x: torch.xlogy(x, x.contiguous()),
    "xlog1py": lambda x: torch.special.xlog1py(x, x.contiguous()),
    "normal": lambda x: torch.normal(x, x),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", INPUTS)
@pytest.mark.parametrize("name", ON_BOTH)
def test_results_of_ops(name, form, device):
    """Of inputs in several layouts, on the CPU and on CUDA."""
    op, x = ON_BOTH[name], INPUTS[form]().sigmoid().to(device)
    with torch.no_grad():
        expected = op(x)
        mode = fake_mode()
        with true_layouts(), mode:
            faked = op(mode.from_tensor(x))
    assert (faked.shape, faked.dtype, faked.stride()) == (
        expected.shape,
        expected.dtype,
        expected.stride(),
    )


IMAGES = {
    "shuffled": lambda x: torch.channel_shuffle(x, 2),
    "padded, backward": lambda x: aten.replication_pad2d_backward(
        nn.functional.pad(x, (1, 1, 1, 1), mode="replicate").contiguous(), x, [1, 1, 1, 1]
    ),
    "loss of places": lambda x: nn.functional.cross_entropy(
        x, x.new_zeros(2, 4, 5, dtype=torch.int64).mT.contiguous().mT, reduction="none"
    ),
    "unpooled": lambda x: nn.functional.max_unpool2d(
        x, torch.arange(x[0, 0].numel(), device=x.device).view(x.shape[2:]).expand(x.shape) * 2, 2
    ),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("is_last", [True, False])
@pytest.mark.parametrize("name", IMAGES)
def test_images(name, is_last, device):
    """They stay channels-last where the kernel leaves them so."""
    x = torch.randn(2, 6, 4, 5, device=device)
    x = x.contiguous(memory_format=torch.channels_last) if is_last else x
    mode = fake_mode()
    with true_layouts(), mode:
        faked = IMAGES[name](mode.from_tensor(x)).stride()
    assert faked == IMAGES[name](x).stride()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("is_last", [True, False])
@pytest.mark.parametrize("channels", [2, 6])
def test_enlarged_images(channels, is_last, device):
    """They stay channels-last."""
    x = torch.randn(2, channels, 4, 5, device=device)
    x = x.contiguous(memory_format=torch.channels_last) if is_last else x
    for given, way in ((x, "bilinear"), (x.unsqueeze(2), "trilinear")):
        size = [7] * (given.dim() - 2)

        def made(it, size=size, way=way):
            return nn.functional.interpolate(it, size=size, mode=way).stride()

        mode = fake_mode()
        with true_layouts(), mode:
            faked = made(mode.from_tensor(given))
        assert faked == made(given)


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_a_batch_norm_of_a_transposed_sequence_runs_by_its_schedule(device):
    """Its backward's kernel writes in the order of dimensions, whatever the input's."""

    class Features(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm = nn.Linear(6, 8), nn.BatchNorm1d(8)
            self.last = nn.Linear(8, 2)

        def forward(self, x):
            return self.last(self.norm(self.first(x).transpose(1, 2)).transpose(1, 2).relu())

    torch._dynamo.reset()
    model, x = Features().to(device), torch.randn(4, 5, 6, device=device)
    model(x).sum().backward()
    expected = [it.grad.clone() for it in model.parameters()]
    model.zero_grad()
    step = torch.compile(model, backend="schedsim", options={"budget": "1GB"})
    step(x).sum().backward()
    for it, gradient in zip(model.parameters(), expected, strict=True):
        assert it.grad.stride() == gradient.stride()
        assert device == "cuda" or torch.equal(it.grad, gradient)  # it may be a dry one


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

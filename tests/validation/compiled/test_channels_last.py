"""Compiled convolutions read and write channels-last, and nothing outside of the step sees it."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from fused_steps import assert_close, captured_step, convolutional, gated, left_by  # noqa: E402
from schedsim.validation.capture.program import refs  # noqa: E402
from schedsim.validation.capture.to_graph import to_graph  # noqa: E402
from schedsim.validation.compiled.channels_last import with_channels_last  # noqa: E402
from schedsim.validation.compiled.compile_step import CompileWarning  # noqa: E402
from schedsim.validation.compiled.decompose import decompose  # noqa: E402
from schedsim.validation.compiled.fuse import fused  # noqa: E402
from schedsim.validation.compiled.gradient_kernels import split_gradients  # noqa: E402
from schedsim.validation.compiled.group import Groups  # noqa: E402
from schedsim.validation.compiled.scratch_of_layouts import needs_planes  # noqa: E402
from tiers import slow_where  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim import Schedule  # noqa: E402

aten = torch.ops.aten


class Beside(nn.Module):
    """Convolutions of all kinds that read the same tensor; the sum of what they make."""

    def __init__(self) -> None:
        super().__init__()
        self.all = nn.ModuleList(
            [
                nn.Conv2d(8, 16, 3, padding=1),
                nn.Conv2d(8, 2, 3),  # to fewer channels
                nn.Conv2d(8, 16, 1, bias=False),
                nn.Conv2d(8, 16, 3, stride=2),
                nn.Conv2d(8, 8, 3, dilation=2),
                nn.Conv2d(8, 16, 3, groups=2),
                nn.Conv2d(8, 8, 3, groups=8),
                nn.Conv2d(8, 8, 7, padding=3, groups=8),  # in planes
                nn.ConvTranspose2d(8, 4, 2, stride=2),
                nn.ConvTranspose2d(8, 8, 3, groups=4),
                nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect"),
            ]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of the shape of `x`."""
        means = [convolution(x).sin().mean((1, 2, 3), keepdim=True) for convolution in self.all]
        return x * sum(means)


class Around(nn.Module):
    """A convolution between others, and what a network puts around it."""

    def __init__(self, middle: nn.Module, batch_norm: bool = True) -> None:
        super().__init__()
        self.first, self.middle = nn.Conv2d(3, 8, 3, padding=1), middle
        self.norm = nn.BatchNorm2d(8) if batch_norm else nn.GroupNorm(2, 8)
        self.pool, self.last = nn.MaxPool2d(2), nn.LazyConv2d(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Views, joined channels, a mean and a product of matrices of what convolutions made."""
        y = torch.relu(self.norm(self.first(x)))
        z = self.pool(self.middle(torch.cat([y[:, :4], y[:, 4:] * 2], 1)))
        z = self.last(nn.functional.interpolate(z, scale_factor=2))
        tokens = z.flatten(2).transpose(1, 2)
        return (tokens @ tokens.transpose(1, 2)).softmax(-1).flatten(1).mean(1) + z.mean((1, 2, 3))


def around(middle, batch=3, batch_norm=True):
    """Model, inputs and loss."""
    torch.manual_seed(0)
    model = Around(middle(), batch_norm)
    inputs = torch.randn(batch, 3, 12, 12), torch.randn(batch)
    model(inputs[0])  # gives the lazy layer its shape
    return model, inputs, nn.functional.mse_loss


def plain():
    """A convolution that keeps the shape."""
    return nn.Conv2d(8, 8, 3, padding=1)


def relaid(captured, checks):
    """`captured` op by op in channels-last, and what lies otherwise than the program says."""
    program = with_channels_last(split_gradients(decompose(captured.program)))
    calls = list(program.calls)
    for index, call in enumerate(calls):
        if call.target in (aten.copy_.default,) or index == program.seed:
            continue

        def checked(*args, _call=call, _target=call.target, **kwargs):
            made = _target(*args, **kwargs)
            parts = made if _call.is_tuple else (made,)
            for v, part in zip(_call.outputs, parts, strict=False):
                if v < 0 or part is None:
                    continue
                meant = program.values[v]
                pairs = zip(part.shape, part.stride(), meant.stride, strict=True)
                checks.append((_call.name, all(n == 1 or a == b for n, a, b in pairs)))
            return made

        calls[index] = replace(call, target=checked)
    graph = to_graph(program, "relaid", captured.graph.static_bytes)
    return replace(captured, program=replace(program, calls=calls), graph=graph)


def layouts(program):
    """The strides of whatever convolutions of `program` read and write, if they have an order.

    But for those that would take much scratch in channels-last.
    """
    found = []
    for call in program.calls:
        if call.target in (aten.convolution.default, aten.convolution_backward.default):
            if needs_planes(program, call):
                continue
            read = list(refs(call.args[:2]))
            found += [program.values[v] for v in (*read, *call.outputs[:1]) if v >= 0]
    return [(v.shape, v.stride) for v in found if min(v.shape[1:]) > 1]


@pytest.mark.slow
@pytest.mark.parametrize("batch", slow_where([1, 3], lambda batch: batch == 1))
def test_kernels_lay_out_their_results_as_the_program_says(batch):
    """Loss, gradients and buffers are the plain step's, and every tensor lies where it should."""
    model, inputs, loss = around(Beside, batch)
    checks: list[tuple[str, bool]] = []
    captured = captured_step(model, inputs, loss)
    strides = layouts(with_channels_last(split_gradients(decompose(captured.program))))
    captured = relaid(captured, checks)
    module = captured.module(Schedule.store_all(captured.graph))
    expected = left_by(lambda x, t: loss(model(x), t), model, inputs)
    assert_close(left_by(module, model, inputs), expected)
    assert checks
    assert [name for name, right in checks if not right] == []
    assert len(strides) >= 30
    assert [at for at in strides if at[1][1] != 1] == []


@pytest.mark.slow
def test_gradients_keep_the_layout_of_their_parameters(uncompiled):
    """And the model keeps its parameters; one that is in channels-last already stays so."""
    for layout in (torch.contiguous_format, torch.channels_last):
        model, inputs, loss = around(plain)
        model = model.to(memory_format=layout)
        captured = captured_step(model, inputs, loss)
        program = fused(captured.program, Groups())
        graph = to_graph(program, "fused", captured.graph.static_bytes)
        module = replace(captured, program=program, graph=graph).module(Schedule.store_all(graph))
        module(*inputs).backward()
        for parameter in model.parameters():
            if parameter.dim() == 4:
                assert parameter.is_contiguous(memory_format=layout)
                assert parameter.grad.stride() == parameter.stride()


@pytest.mark.slow
def test_other_norms_and_outputs_keep_their_layout(uncompiled):
    """Group norm views channels by groups, which channels-last cannot show."""
    model, inputs, loss = around(plain, batch_norm=False)
    checks: list[tuple[str, bool]] = []
    captured = relaid(captured_step(model, inputs, loss), checks)
    module = captured.module(Schedule.store_all(captured.graph))
    expected = left_by(lambda x, t: loss(model(x), t), model, inputs)
    assert_close(left_by(module, model, inputs), expected)
    assert [name for name, right in checks if not right] == []


@pytest.mark.slow
def test_an_image_that_is_viewed_as_a_row_is_copied_first(uncompiled):
    """A view of all of its entries, as a discriminator's head takes it, needs the traced layout."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(8 * 4 * 4, 1)
    )
    inputs, loss = (torch.randn(3, 3, 8, 8), torch.randn(3, 1)), nn.functional.mse_loss
    captured = captured_step(model, inputs, loss)
    assert with_channels_last(parts := decompose(captured.program)) is not parts
    program = fused(captured.program, Groups())
    graph = to_graph(program, "fused", captured.graph.static_bytes)
    module = replace(captured, program=program, graph=graph).module(Schedule.store_all(graph))
    expected = left_by(lambda x, t: loss(model(x), t), model, inputs)
    assert_close(left_by(module, model, inputs), expected)


@pytest.mark.slow
def test_steps_without_images_stay_as_they_are():
    for make in (gated, lambda: signals(nn.Conv1d(2, 3, 3))):
        parts = decompose(captured_step(*make()).program)
        assert with_channels_last(parts) is parts


def signals(convolution):
    """Model, inputs and loss of a convolution over one dimension."""
    model = nn.Sequential(convolution, nn.Flatten(), nn.Linear(18, 1))
    return model, (torch.randn(2, 2, 8), torch.randn(2, 1)), nn.functional.mse_loss


@pytest.mark.slow
def test_images_are_laid_out_beside_signals_and_volumes(uncompiled):
    """As inductor does: of an encoder of speech, whose blocks have convolutions over time."""

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.images, self.more = nn.Conv2d(3, 4, 3, 2), nn.Conv2d(4, 4, 3, 2)
            self.signals, self.volumes = nn.Conv1d(4, 4, 2), nn.Conv3d(4, 4, (1, 2, 1))

        def forward(self, x):
            y = self.more(torch.relu(self.images(x)))
            z = self.signals(y.flatten(2)).tanh()
            return z.mean((1, 2)) + self.volumes(y[..., None]).mean((1, 2, 3, 4))

    torch.manual_seed(0)
    model, inputs = Mixed(), (torch.randn(2, 3, 13, 13), torch.randn(2))
    captured = captured_step(model, inputs, nn.functional.mse_loss)
    program = fused(captured.program, Groups())
    convolutions = aten.convolution.default, aten.convolution_backward.default
    read = [next(iter(refs(c.args))) for c in program.calls if c.target in convolutions]
    orders = [(len(v.shape), v.stride[1]) for v in (program.values[v] for v in read)]
    assert {stride for dims, stride in orders if dims == 4} == {1}
    assert {stride > 1 for dims, stride in orders if dims != 4} == {True}
    step = replace(captured, program=program, graph=to_graph(program, "mixed", 0))
    module, loss = step.module(Schedule.store_all(step.graph)), nn.functional.mse_loss
    expected = left_by(lambda x, t: loss(model(x), t), model, inputs)
    assert_close(left_by(module, model, inputs), expected)


@pytest.mark.slow
def test_a_step_that_looks_at_storages_stays_as_it_is():
    """What `as_strided` shows depends on how its tensor lies in memory."""

    class Windows(nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            y = self.convolution(x)
            return y.as_strided((len(x), 5), (y.stride(0), 7)).sum(1)

    torch.manual_seed(0)
    inputs = torch.randn(2, 3, 8, 8), torch.randn(2)
    parts = decompose(captured_step(Windows(), inputs, nn.functional.mse_loss).program)
    assert with_channels_last(parts) is parts


@pytest.mark.slow
def test_the_layout_follows_the_setting_of_inductor():
    from torch._inductor import config

    parts = decompose(captured_step(*convolutional()).program)
    with config.patch(layout_optimization=False):
        assert with_channels_last(parts) is parts
    assert with_channels_last(parts) is not parts


@pytest.mark.slow
def test_images_that_a_part_hands_over_have_their_layout_before_the_backward(uncompiled):
    """A part of a step returns images, one of which its own backward reads."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 1)

        def forward(self, x):
            y = torch.relu(self.first(x))
            return y, self.second(y)

    def step(compiled):
        torch.manual_seed(0)
        model, x = Two(), torch.randn(2, 3, 8, 8)
        if compiled:
            schedsim.rematerialize(model, (x,), "200%", in_place=True, compile=True)
        y, z = model(x)
        (y.square().mean() + z.sin().mean()).backward()
        return [y.detach(), z.detach(), *(p.grad for p in model.parameters())]

    with warnings.catch_warnings():
        warnings.simplefilter("error", CompileWarning)
        found = step(compiled=True)
    expected = step(compiled=False)
    assert_close(found, expected)
    assert [t.stride() for t in found] == [t.stride() for t in expected]

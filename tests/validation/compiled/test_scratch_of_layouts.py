"""The gradient of a weight takes its images in the layout in which it needs less."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from fused_steps import assert_close, captured_step, left_by  # noqa: E402
from schedsim.validation.capture.program import refs  # noqa: E402
from schedsim.validation.capture.to_graph import to_graph  # noqa: E402
from schedsim.validation.compiled.fuse import fused  # noqa: E402
from schedsim.validation.compiled.group import Groups  # noqa: E402
from schedsim.validation.compiled.group_sizes import GroupSize  # noqa: E402
from schedsim.validation.costs.measured import measure_call  # noqa: E402
from torch import nn  # noqa: E402

from schedsim import Schedule  # noqa: E402

aten = torch.ops.aten
pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="the scratch is oneDNN's"
)


class Depthwise(nn.Module):
    """Two convolutions in front of a depthwise one, whose kernel is `places` wide."""

    def __init__(self, places: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 32, 1)
        self.deep = nn.Conv2d(32, 32, places, padding=places // 2, groups=32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of each image, one number."""
        y = torch.relu(self.second(torch.relu(self.first(x))))
        return torch.tanh(self.deep(y) + y).mean((1, 2, 3))


def stepped(places: int):
    """The step of a depthwise convolution, and its program in groups."""
    torch.manual_seed(0)
    model, inputs = Depthwise(places), (torch.randn(4, 3, 8, 8), torch.randn(4))
    captured = captured_step(model, inputs, nn.functional.mse_loss)
    return model, inputs, captured, fused(captured.program, Groups())


def deep_backward(program):
    """The backward of the depthwise convolution."""
    calls = [c for c in program.calls if c.target is aten.convolution_backward.default]
    return next(call for call in calls if call.args[9] > 1)


def images(program):
    """The stride of the channels of the images that it reads."""
    return [program.values[v].stride[1] for v in refs(deep_backward(program).args[:2])]


def test_a_wide_depthwise_kernel_takes_planes():
    """In channels-last its backward takes 1.6 MB of scratch for images of 33 kB."""
    _, _, _, program = stepped(7)
    assert images(program) == [64, 64]
    measured = measure_call(program, deep_backward(program), torch.device("cpu"), 1e-3)
    assert measured.workspace_bytes < 150_000


def test_a_small_depthwise_kernel_stays_in_channels_last():
    """There it takes no more scratch than in planes, and is quicker."""
    _, _, _, program = stepped(3)
    assert images(program) == [1, 1]


@pytest.mark.parametrize("size", GroupSize)
def test_gradients_are_the_plain_ones(size, uncompiled):
    """Copies into planes change nothing but rounding, whatever the other ops are laid out as."""
    model, inputs, captured, _ = stepped(7)
    program = fused(captured.program, Groups(), size=size)
    assert images(program) == [64, 64]
    step = replace(captured, program=program, graph=to_graph(program, "planes", 0))
    module, loss = step.module(Schedule.store_all(step.graph)), nn.functional.mse_loss
    expected = left_by(lambda x, t: loss(model(x), t), model, inputs)
    assert_close(left_by(module, model, inputs), expected)


class Deep(nn.Module):
    """A network whose last convolution has a weight larger than its images."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.last = nn.Conv2d(16, 32, 3, stride=4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Its images shrink."""
        x = torch.relu(self.norm(self.first(x)))
        return torch.tanh(self.last(nn.functional.max_pool2d(x, 2))).mean((1, 2, 3))


def test_the_gradient_of_a_large_weight_takes_planes_and_nothing_else(uncompiled):
    """In channels-last it takes room for the gradient of the weight twice."""
    torch.manual_seed(0)
    model, inputs = Deep(), (torch.randn(2, 3, 14, 14), torch.randn(2))
    captured = captured_step(model, inputs, nn.functional.mse_loss)
    program = fused(captured.program, Groups())
    convolutions = aten.convolution.default, aten.convolution_backward.default
    calls = [call for call in program.calls if call.target in convolutions]
    read = [[program.values[v] for v in list(refs(call.args))[:2]] for call in calls]
    first, last, of_last, to_first, of_first = ([v.stride[1] for v in it] for it in read)
    assert [first, last, to_first, of_first] == 4 * [[1, 1]]
    assert of_last == [4, 49]
    planes = measure_call(program, calls[2], torch.device("cpu"), 1e-3)
    assert planes.workspace_bytes < 1.5 * model.last.weight.nbytes
    step = replace(captured, program=program, graph=to_graph(program, "deep", 0))
    module, loss = step.module(Schedule.store_all(step.graph)), nn.functional.mse_loss
    expected = left_by(lambda x, t: loss(model(x), t), model, inputs)
    assert_close(left_by(module, model, inputs), expected)

"""Scatters into constants as loops."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from fused_steps import captured_step  # noqa: E402
from schedsim.validation.compiled.constant_scatter import scatters_as_loops  # noqa: E402
from schedsim.validation.compiled.decompose import decompose  # noqa: E402
from schedsim.validation.torch_private import inductor_calls as inductor  # noqa: E402
from schedsim.validation.torch_private.fake_tensors import fake_mode  # noqa: E402
from torch import nn  # noqa: E402

aten = torch.ops.aten


def looped(function, *tensors):
    """`function` traced, with its scatters as loops: what it calls, and a function of its own."""
    mode = fake_mode()
    with mode:
        examples = [torch.empty_like(tensor, device="cpu") for tensor in tensors]
    graph = inductor.traced(function, examples, mode)
    scatters_as_loops(graph, mode)
    graph.lint()
    return [node.target for node in graph.nodes], torch.fx.GraphModule({}, graph)


@pytest.mark.parametrize(("dim", "dtype"), [(1, torch.float32), (-2, torch.bfloat16)])
def test_the_numbers_are_those_of_the_scatter(dim, dtype):
    def scattered(index):
        return torch.full((3, 5, 4), 0.5, dtype=dtype).scatter(dim, index, -2.0) * 2

    index = torch.randint(5, (3, 1, 4), generator=torch.Generator().manual_seed(0))
    targets, again = looped(scattered, index)
    assert aten.scatter.value not in targets
    assert torch.equal(again(index), scattered(index))


@pytest.mark.parametrize("shape", [(3, 2, 4), (2, 1, 4)], ids=["two a line", "not all lines"])
def test_other_scatters_stay(shape):
    """Two numbers in a line, or lines without a number, are no comparison with one position."""
    index = torch.zeros(shape, dtype=torch.int64)
    targets, _ = looped(lambda i: torch.zeros(3, 5, 4).scatter(1, i, 1.0), index)
    assert aten.scatter.value in targets


def test_a_scatter_into_a_tensor_stays():
    index = torch.zeros(3, 1, dtype=torch.int64)
    targets, _ = looped(lambda x, i: x.scatter(1, i, 1.0), torch.randn(3, 5), index)
    assert aten.scatter.value in targets


@pytest.mark.parametrize("shape", [(6, 7), (2, 7, 3, 3)], ids=["classes", "classes of pixels"])
def test_the_backward_of_a_cross_entropy_scatters_nothing(shape):
    torch.manual_seed(0)
    target = torch.randint(7, (shape[0], *shape[2:]))
    target[0] = -100  # ignored
    model = nn.Linear(shape[-1], shape[-1])
    inputs = torch.randn(shape), target
    program = decompose(captured_step(model, inputs, nn.functional.cross_entropy).program)
    targets = [call.target for call in program.calls]
    assert aten.scatter.value not in targets
    assert targets.count(torch.ops.prims.iota.default) == 1

"""Functions in the place of ops: the same kernels, the same bits."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.capture.program import Program  # noqa: E402
from schedsim.validation.op_level.short_calls import SHORT, call_shortly  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

aten = torch.ops.aten


def _arguments():
    torch.manual_seed(0)
    x, y = torch.rand(4, 4), torch.rand(4, 4)
    images, kernel = torch.rand(1, 2, 4, 4), torch.rand(3, 2, 3, 3)
    blocks = torch.rand(2, 3, 3)
    given = {
        aten.add.Tensor: [((x, y), {"alpha": 2}), ((x, 1), {}), ((x, 0.5), {})],
        aten.addmm.default: [((x[0], x, y), {}), ((x[0], x, y), {"beta": 0.5, "alpha": 2})],
        aten.bmm.default: [((blocks, blocks), {})],
        aten.cat.default: [(([x, y],), {}), (([x, y], -1), {})],
        aten.clone.default: [((x.t(),), {"memory_format": torch.contiguous_format}), ((x,), {})],
        aten.convolution.default: [
            ((images, kernel, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), {})
        ],
        aten.div.Tensor: [((x, y), {}), ((x, 3), {})],
        aten.expand.default: [((x[:1], [4, 4]), {}), ((x[:1], [-1, 4]), {"implicit": True})],
        aten.mean.dim: [((x, [1], True), {}), ((x, [0, 1]), {"dtype": torch.float64})],
        aten.mm.default: [((x, y), {})],
        aten.mul.Tensor: [((x, y), {}), ((x, 3), {}), ((x.bfloat16(), 0.1), {})],
        aten.permute.default: [((x, [1, 0]), {})],
        aten.pow.Tensor_Scalar: [((x, 2), {}), ((x, 0.5), {})],
        aten.select.int: [((x, 1, 2), {})],
        aten.sub.Tensor: [((x, y), {"alpha": 3}), ((x, 1.5), {})],
        aten.sum.dim_IntList: [
            ((x, [0], True), {}),
            ((x, []), {}),
            ((x, None), {}),
            ((x.bfloat16(), [1]), {"dtype": torch.float32}),
        ],
        aten.transpose.int: [((x, 0, 1), {})],
        aten.unsqueeze.default: [((x, -1), {})],
        aten.view.default: [((x, [2, -1]), {})],
    }
    for op in SHORT:
        given.setdefault(op, [((x,), {})])
    return given


class Seen(TorchDispatchMode):
    """The ops that run."""

    def __init__(self):
        super().__init__()
        self.ops = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ops.append(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("op", SHORT, ids=str)
def test_a_function_runs_its_op_and_nothing_else(op):
    for args, named in _arguments()[op]:
        wanted = op(*args, **named)
        with Seen() as seen, torch.no_grad():
            found = SHORT[op](*args, **named)
        assert seen.ops == [op]
        assert torch.equal(found, wanted)
        assert (found.stride(), found.dtype) == (wanted.stride(), wanted.dtype)


def test_other_ops_stay_as_they_are():
    assert call_shortly(Program(calls=[])).calls == []

"""Functions in place of ops."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.capture.program import Call, Program  # noqa: E402
from schedsim.validation.compiled.direct_calls import DIRECT, call_directly  # noqa: E402

aten = torch.ops.aten


def samples():
    torch.manual_seed(0)
    a, b, batch = torch.randn(3, 4), torch.randn(4, 5), torch.randn(2, 3, 4)
    image, weight = torch.randn(1, 2, 6, 6), torch.randn(4, 1, 3, 3)
    return {
        aten.mm.default: ((a, b), {}),
        aten.addmm.default: ((torch.randn(5), a, b), {"beta": 0.5, "alpha": 2}),
        aten.bmm.default: ((batch, batch.mT), {}),
        aten.baddbmm.default: ((torch.randn(2, 3, 3), batch, batch.mT), {"alpha": 2}),
        aten.convolution.default: (
            (image, weight, torch.randn(4), [2, 1], [1, 0], [1, 2], False, [0, 0], 2),
            {},
        ),
        aten.copy_.default: ((a.clone(), torch.randn(3, 4)), {}),
        aten.add_.Tensor: ((a.clone(), torch.randn(3, 4)), {"alpha": 2}),
    }


@pytest.mark.parametrize("op", DIRECT, ids=str)
def test_a_function_takes_the_arguments_of_its_op(op):
    args, kwargs = samples()[op]
    again = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args]
    assert torch.equal(op(*args, **kwargs), DIRECT[op](*again, **kwargs))
    if op._schema.is_mutable:
        assert torch.equal(args[0], again[0])


def test_other_calls_stay():
    program = Program()
    program.calls = [Call("a", aten.mm.default, (), {}), Call("b", aten.tanh.default, (), {})]
    found = call_directly(program)
    assert [call.target for call in found.calls] == [torch.mm, aten.tanh.default]
    assert [call.target for call in program.calls] == [aten.mm.default, aten.tanh.default]

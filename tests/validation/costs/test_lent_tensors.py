"""Ops are measured on large tensors that are there anyway."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.capture import capture  # noqa: E402
from schedsim.validation.costs import lent_tensors  # noqa: E402
from schedsim.validation.costs.lent_tensors import Lenders, lending  # noqa: E402
from schedsim.validation.costs.measured import made_up_tensors  # noqa: E402
from torch import nn  # noqa: E402

ROWS, WIDTH = 300, 200


@pytest.fixture(scope="module")
def captured():
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 40))
    return capture(model, torch.randn(ROWS, WIDTH), lambda out: out.square().mean())


def product(captured):
    """The first product, and the values that it reads as matrices."""
    program = captured.program
    call = next(it for it in program.calls if "addmm" in it.name)
    return program, call, [a for a in map(ref_of, call.args) if a is not None][1:3]


def ref_of(argument):
    return getattr(argument, "value", None)


def test_parameters_and_inputs_are_lent_with_their_strides(captured):
    program, call, (x, weight) = product(captured)
    own, given = captured.model[0].weight, torch.randn(ROWS, WIDTH)
    with lending([own, given, torch.randn(3), None]):
        make = made_up_tensors(program, call, torch.device("cpu"))
        found = [make(value) for value in (x, weight)]
        again = make(weight)
    assert [t.data_ptr() for t in found] == [given.data_ptr(), own.data_ptr()]
    assert again.data_ptr() != own.data_ptr()  # for one argument each
    for value, tensor in zip((x, weight), found, strict=True):
        its = program.values[value]
        assert (tuple(tensor.shape), tensor.stride()) == (its.shape, its.stride)
    make = made_up_tensors(program, call, torch.device("cpu"))
    assert make(weight).data_ptr() != own.data_ptr()  # behind the block


def test_what_no_op_may_read_is_not_lent(captured):
    program, call, (x, weight) = product(captured)
    whole = torch.randn(2 * ROWS, WIDTH)
    with lending([whole[:ROWS], torch.randn(ROWS, WIDTH).double()]):
        assert Lenders(program, call).take(x) is None  # an op would see the size of the whole
    written = torch.ops.aten.add_.Tensor
    with lending([captured.model[0].weight]):
        assert Lenders(program, call).take(weight) is not None
        assert Lenders(program, replace(call, target=written)).take(weight) is None
        computed = program.calls[-1].outputs[0]
        assert Lenders(program, call).take(computed) is None


def test_where_no_op_is_measured_no_tensor_is_looked_at(monkeypatch):
    """As in nearly every step of a loop, whose model may have hundreds of parameters."""
    seen = []
    monkeypatch.setattr(lent_tensors, "_is_large", seen.append)
    with lending([torch.randn(ROWS, WIDTH)]):
        pass
    assert not seen

"""Sizes that a trace left open."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.capture.program import Call, Program, Ref, Storage, Value  # noqa: E402
from schedsim.validation.capture.varying_sizes import (  # noqa: E402
    VaryingSize,
    broadcast,
    numbers_of,
    open_sizes,
    product,
    settled_program,
    settled_value,
)

LENGTH = VaryingSize("s0")


def test_equal_where_texts_are():
    """Not where numbers agree by accident."""
    assert VaryingSize("s0") == LENGTH != VaryingSize("s1")
    assert VaryingSize("64") != 64
    assert len({LENGTH, VaryingSize("s0")}) == 1


def test_functions_of_python():
    size = VaryingSize("operator.truediv(math.ceil(s0 / 3), max(s1, 2))")
    assert size.names == {"s0", "s1"}
    assert size.at({"s0": 7, "s1": 1}) == math.ceil(7 / 3) / 2
    assert numbers_of([size, 5], ["s1", "s0"])((4, 7)) == (0.75, 5)
    assert numbers_of([], [])(()) == ()


def test_shapes():
    assert product([2, 3]) == 6
    assert product([LENGTH, 3]).at({"s0": 5}) == 15
    assert broadcast([(LENGTH, 1), (1, 4)]) == (LENGTH, 4)
    assert broadcast([(4,), (LENGTH, 4)]) == (LENGTH, 4)


def test_a_program_at_some_sizes():
    """Everything in it is a number then; the program with formulas stays."""
    shape = (LENGTH, 2)
    program = Program(
        values=[Value(0, shape, (2, 1), torch.float32, torch.device("cpu"))],
        storages=[Storage(VaryingSize("8*s0"), "computed", 0)],
        calls=[
            Call(
                "view",
                torch.ops.aten.view.default,
                (Ref(0), [LENGTH, 2]),
                {"size": (LENGTH,)},
                lean=(torch.ops.aten.view.default, (Ref(0), [VaryingSize("s0 + 1")])),
            )
        ],
    )
    assert len(open_sizes(program)) == 3
    settled = settled_program(program, {"s0": 3})
    assert settled.values[0].shape == (3, 2)
    assert settled.storages[0].size_bytes == 24
    (call,) = settled.calls
    assert call.args == (Ref(0), [3, 2])
    assert call.kwargs == {"size": (3,)}
    assert call.lean[1] == (Ref(0), [4])
    assert program.values[0].shape == shape
    assert settled_program(settled, {}) is settled
    numbers = range(len(program.values))
    assert [settled_value(program, v, {"s0": 3}) for v in numbers] == list(settled.values)

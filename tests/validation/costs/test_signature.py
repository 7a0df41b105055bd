"""What makes two ops cost the same."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from made_programs import call, tensor  # noqa: E402
from schedsim.validation.capture.program import Program, Ref  # noqa: E402
from schedsim.validation.costs.signature import signature, target_name  # noqa: E402

aten = torch.ops.aten


def signed(target=aten.mm.default, shape=(8, 4), **given) -> str:
    program = Program()
    options = {key: given.pop(key) for key in ("dtype", "stride") if key in given}
    x = tensor(program, shape, **options)
    args = given.pop("args", (Ref(x), Ref(x)))
    return signature(program, call(program, "name", target, args, tensor(program), **given))


def test_equal_work_reads_the_same():
    """Whatever it is called, and whichever tensors it takes."""
    one = "float32[8, 4]/4,1@cpu"
    assert signed() == f"aten::mm.default({one}, {one}){{}}"
    program = Program()
    tensor(program)
    x = tensor(program, (8, 4))
    other = call(program, "other", aten.mm.default, (Ref(x), Ref(x)), tensor(program))
    assert signature(program, other) == signed()


@pytest.mark.parametrize(
    "given",
    [
        {"target": aten.add.Tensor},
        {"shape": (4, 8)},
        {"dtype": torch.float16},
        {"stride": (1, 8)},
        {"args": (Ref(0),)},
        {"args": (Ref(0), Ref(0), 2)},
        {"args": (Ref(0), [Ref(0)])},
        {"kwargs": {"alpha": 2}},
        {"kwargs": {"alpha": 3}},
        {"kwargs": {"other": Ref(0)}},
    ],
)
def test_what_costs_otherwise_reads_otherwise(given):
    """Function, shape, format, layout, constants, nesting and keywords."""
    assert signed(**given) != signed()
    assert signed(**given) == signed(**given)


def test_functions_are_named_by_their_schema_or_themselves():
    """Overloads apart."""

    def own(x):
        return x

    program = Program()
    names = [
        target_name(call(program, "c", target, ()))
        for target in (aten.add.Tensor, aten.add.Scalar, aten.mm.default, own)
    ]
    assert names == ["aten::add.Tensor", "aten::add.Scalar", "aten::mm.default", "own"]

"""A kernel that cannot read what is conjugated later makes a copy, which counts."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.capture.program import Call, Program, Ref, Storage, Value  # noqa: E402
from schedsim.validation.costs.lazy_bits import LazyBits, lazy_bits  # noqa: E402
from schedsim.validation.costs.measured import measure_call  # noqa: E402
from schedsim.validation.costs.signature import signature  # noqa: E402

aten = torch.ops.aten
SIDE = 8


def products():
    """A product with a matrix, and with its conjugate, turned or as it is."""
    program, cpu = Program(), torch.device("cpu")
    for kind in ("input", "input", "computed"):
        program.storages.append(Storage(8 * SIDE * SIDE, kind))
    for storage, stride in ((0, (SIDE, 1)), (1, (SIDE, 1)), (1, (SIDE, 1)), (1, (1, SIDE))):
        program.values.append(Value(storage, (SIDE, SIDE), stride, torch.complex64, cpu))
    for source, target, v in ((1, aten._conj.default, 2), (2, aten.t.default, 3)):
        program.values[v].call = len(program.calls)
        program.calls.append(Call("view", target, (Ref(source),), {}, outputs=[v], is_view=True))
    program.values.append(Value(2, (SIDE, SIDE), (SIDE, 1), torch.complex64, cpu))
    made = [Call(f"mm{v}", aten.mm.default, (Ref(0), Ref(v)), {}, outputs=[4]) for v in (1, 2, 3)]
    return program, made


def test_bits_follow_from_the_views():
    program, _ = products()
    expected = LazyBits(), LazyBits(), LazyBits(True), LazyBits(True)
    assert tuple(lazy_bits(program, v) for v in range(4)) == expected
    twice = Call("again", aten._conj.default, (Ref(3),), {}, outputs=[4], is_view=True)
    program.values[4].call = len(program.calls)
    program.calls.append(twice)
    assert lazy_bits(program, 4) == LazyBits()


def test_the_copy_of_a_conjugate_is_measured():
    """The product reads the conjugate of a transposed matrix where it lies."""
    program, made = products()
    copies = [
        measure_call(program, call, torch.device("cpu"), 0.0).workspace_bytes for call in made
    ]
    assert copies == [0, 8 * SIDE * SIDE, 0]
    assert len({signature(program, call) for call in made}) == 3

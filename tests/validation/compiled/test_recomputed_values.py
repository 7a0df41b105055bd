"""Copies of values, computed just before whoever reads them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from fused_steps import chain_program  # noqa: E402
from schedsim.validation.capture.program import Call, Ref, Value, refs  # noqa: E402
from schedsim.validation.compiled.recomputed_values import RecomputedValues  # noqa: E402

aten = torch.ops.aten


def two_readers():
    """a -> sin -> times b, and the sine's transpose -> cos."""
    program = chain_program((4, 4))
    sine = program.values[2]
    program.values[2].call, program.storages[2].call = 0, 0
    program.values.append(Value(2, sine.shape, (1, 4), sine.dtype, sine.device))
    view, seen = len(program.values) - 1, len(program.values)
    program.storages.append(type(program.storages[0])(64, "computed"))
    program.values.append(Value(5, sine.shape, (1, 4), sine.dtype, sine.device))
    program.calls.insert(2, Call("turn", aten.t.default, (Ref(2),), {}, outputs=[view]))
    program.calls[2].is_view = True
    program.calls.append(Call("cos", aten.cos.default, (Ref(view),), {}, outputs=[seen]))
    for i, call in enumerate(program.calls):
        for v in call.outputs:
            program.values[v].call = i
            if not call.is_view:
                program.storages[program.values[v].storage].call = i
    program.seed = 0
    return program


def names(program):
    return [call.name for call in program.calls]


def computed(program, a, b):
    """What the calls make of two tensors, by name."""
    held, found = {0: a, 1: b}, {}
    for call in program.calls:
        given = [held[x.value] if isinstance(x, Ref) else x for x in call.args]
        held[call.outputs[0]] = found[call.name] = call.target(*given)
    return found


def test_readers_share_one_copy_before_the_first_of_them():
    program = two_readers()
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    expected = computed(program, a, b)
    copies = RecomputedValues(program)
    copies.compute_again({2}, [1, 4])
    assert copies.insert()
    assert names(program) == [
        "sin",
        "sin.again1",
        "mul",
        "turn",
        "sum",
        "turn.again4",
        "cos",
    ]
    original = program.storages[2].call
    assert names(program)[original] == "sin"
    assert [c.name for c in program.calls if 2 in refs(c.args)] == ["turn"]
    found = computed(program, a, b)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_a_copy_for_each_reader_where_they_are_asked_for_apart():
    program = two_readers()
    copies = RecomputedValues(program)
    copies.compute_again({2}, [1])
    copies.compute_again({2}, [4])
    copies.insert()
    assert [name for name in names(program) if "sin" in name] == ["sin", "sin.again1", "sin.again4"]
    for i, call in enumerate(program.calls):
        for v in call.outputs:
            assert program.values[v].call == i


def test_without_copies_nothing_moves():
    program = two_readers()
    before = names(program)
    assert not RecomputedValues(program).insert()
    assert names(program) == before


def test_a_part_of_several_is_a_part_of_the_copy():
    """A view of several outputs, as `split`: its copy was one of a single output."""
    program = two_readers()
    turn = program.values[5]
    program.calls[2].target = aten.split.Tensor
    program.calls[2].args = (Ref(2), 2)
    program.calls[2].is_tuple = True
    halves = [Value(2, (2, 4), (4, 1), turn.dtype, turn.device, 2, at) for at in range(2)]
    program.values[5] = halves[0]
    program.values.append(halves[1])
    program.calls[2].outputs = [5, len(program.values) - 1]
    program.calls[4].args = (Ref(len(program.values) - 1),)
    copies = RecomputedValues(program)
    copies.compute_again({2}, [4])
    assert copies.insert()
    [copy] = [call for call in program.calls if call.name == "turn.again4"]
    assert copy.is_tuple
    assert copy.is_view
    assert list(refs(program.calls[names(program).index("cos")].args)) == [copy.outputs[1]]
    assert [program.values[v].position for v in copy.outputs] == [0, 1]
    assert {program.values[v].storage for v in copy.outputs} != {2}

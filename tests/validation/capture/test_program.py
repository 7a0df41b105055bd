"""References among nested arguments, and what a call reads."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from made_programs import call, tensor  # noqa: E402
from schedsim.validation.capture.program import Program, Ref, map_refs, refs  # noqa: E402

TREE = (Ref(3), [Ref(1), 2, {"x": Ref(3), "y": "text"}], (None, (Ref(0),)))


def test_references_are_found_in_order_with_repeats():
    """In tuples, lists and dictionaries, however deep; nothing else is one."""
    assert list(refs(TREE)) == [3, 1, 3, 0]
    assert list(refs([1, "text", None, {}])) == []


def test_references_are_replaced_and_the_nesting_stays():
    """Containers keep their kinds; a value that is no reference is left alone."""
    changed = map_refs(TREE, lambda value: value * 10)
    assert changed == (30, [10, 2, {"x": 30, "y": "text"}], (None, (0,)))
    assert TREE[0] == Ref(3)


def test_storages_read_are_those_not_resident_once_each():
    """Two views of one storage count once; parameters do not."""
    program = Program()
    weight, x = tensor(program, kind="static"), tensor(program, kind="input")
    view, y = tensor(program, (8, 4), base=x), tensor(program)
    made = call(program, "op", torch.add, (Ref(y), [Ref(view), Ref(weight)]), kwargs={"o": Ref(x)})
    storages = [program.values[v].storage for v in (y, x)]
    assert program.base_reads(made) == storages


def test_a_whole_step_has_one_loss_and_one_tangent():
    """A part of a step has several: then there is no such thing."""
    program = Program(outputs=[4], tangents=[7])
    assert (program.loss, program.tangent) == (4, 7)
    program.outputs.append(5)
    with pytest.raises(ValueError, match="too many values"):
        _ = program.loss

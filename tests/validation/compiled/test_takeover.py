"""Outputs that take over an input's storage, where elements are read before written."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from fused_steps import chain_program  # noqa: E402
from schedsim.validation.capture.program import Call, Ref  # noqa: E402
from schedsim.validation.compiled.takeover import takeover  # noqa: E402

aten = torch.ops.aten


def of_computed():
    program = chain_program()
    for s in (0, 1):
        program.storages[s].kind = "computed"
    for i, call in enumerate(program.calls):
        program.values[call.outputs[0]].call = i
    return program


def test_an_elementwise_result_takes_over_what_dies():
    assert takeover(of_computed(), [0, 1], [0, 1], [3], ()) == (0, 0)


def test_what_is_summed_up_is_not_overwritten():
    """The sum would read what has been written."""
    assert takeover(of_computed(), [0, 1, 2], [0, 1], [3, 4], ()) == (-1, -1)


def test_complex_numbers_take_nothing_over():
    """The kernel of an op on them makes a tensor, which would be copied."""
    program = of_computed()
    for v in range(4):
        program.values[v] = replace(program.values[v], dtype=torch.complex64)
    assert takeover(program, [0, 1], [0, 1], [3], ()) == (-1, -1)


def test_inputs_of_the_step_and_results_stay():
    program = of_computed()
    assert takeover(program, [0, 1], [0, 1], [3], {0}) == (1, 0)
    program.storages[1].kind = "static"
    assert takeover(program, [0, 1], [0, 1], [3], {0}) == (-1, -1)


def test_what_is_read_through_a_view_is_not_overwritten():
    program = of_computed()
    program.calls.insert(0, Call("t", aten.flip.default, (Ref(0), [0]), {}, outputs=[2]))
    program.calls[1] = Call("sin", aten.sin.default, (Ref(2),), {}, outputs=[2])
    program.values[3].call = 2
    assert takeover(program, [0, 1, 2], [0, 1], [3], ())[0] != 0

"""Sums of gradients in place: only where nobody else may look at what is overwritten."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from made_programs import call, tensor  # noqa: E402
from schedsim.validation.capture.accumulation import add_in_place  # noqa: E402
from schedsim.validation.capture.program import Program, Ref  # noqa: E402

aten = torch.ops.aten


def summed(program: Program | None = None, *, left=None, right=None, total=None, **given):
    """A sum of two gradients made by calls; the program, the two parts, and the sum's call."""
    program = program or Program()
    parts = []
    for name, options in (("left", left), ("right", right)):
        value = tensor(program, **(options or {}))
        call(program, name, aten.sin.default, (), value)
        parts.append(value)
    out = tensor(program, **(total or {}))
    given = {"is_gradient_sum": True} | given
    made = call(program, "sum", aten.add.Tensor, tuple(map(Ref, parts)), out, **given)
    return program, parts, made


def test_the_first_part_is_overwritten():
    """By the form of addition that writes into its first argument."""
    program, parts, made = summed()
    add_in_place(program)
    assert made.takes_over == parts[0]
    assert made.overwriting is aten.add_.Tensor


@pytest.mark.parametrize(
    "left",
    [
        {"kind": "input"},
        {"kind": "static"},
        {"stride": (1, 4)},
        {"dtype": torch.float64},
        {"shape": (8, 4)},
    ],
)
def test_a_part_that_does_not_fit_is_left(left):
    """Other bytes, another layout or format, or not made by the step: then the second is taken."""
    program, parts, made = summed(left=left)
    add_in_place(program)
    assert made.takes_over == parts[1]
    program, _, made = summed(left=left, right=left)
    add_in_place(program)
    assert made.takes_over == -1


def test_what_lives_to_the_end_is_left():
    """A gradient that is a result, or that somebody gave."""
    program, parts, made = summed()
    program.gradients["w"], program.tangents = parts[0], [parts[1]]
    add_in_place(program)
    assert made.takes_over == -1


def test_a_part_of_a_larger_storage_is_left():
    """The sum would keep all of it."""
    program = Program()
    program, parts, made = summed(program)
    program.storages[program.values[parts[0]].storage].size_bytes *= 2
    add_in_place(program)
    assert made.takes_over == parts[1]


def test_a_gradient_added_to_itself_is_left():
    """Both parts look at one storage."""
    program, parts, made = summed()
    made.args = (Ref(parts[0]), Ref(parts[0]))
    add_in_place(program)
    assert made.takes_over == -1


def test_sums_that_autograd_did_not_make_are_left():
    """The model's own additions are left, and sums with other arguments."""
    for given in ({"is_gradient_sum": False}, {"kwargs": {"alpha": 2}}):
        program, _, made = summed(**given)
        add_in_place(program)
        assert made.takes_over == -1

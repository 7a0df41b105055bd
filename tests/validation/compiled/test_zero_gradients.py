"""Groups that read one number in the place of a gradient that is zero."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from fused_steps import chain_program  # noqa: E402
from schedsim.validation.capture.program import Call, Ref  # noqa: E402
from schedsim.validation.compiled.fuse import fused, fused_without  # noqa: E402
from schedsim.validation.compiled.group import Groups  # noqa: E402
from schedsim.validation.compiled.group_sizes import GroupSize  # noqa: E402
from schedsim.validation.compiled.zero_gradients import (  # noqa: E402
    keeps_layouts,
    with_zero_gradients,
)
from schedsim.validation.drop_in import backend  # noqa: E402
from schedsim.validation.drop_in.backend import SESSIONS  # noqa: E402
from torch import nn  # noqa: E402


class TwoOutputs(nn.Module):
    """A product whose output is given a gradient directly, and one behind a view and a sine."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(6, 8), nn.Linear(6, 8)

    def forward(self, x):
        return self.one(x), torch.sin(self.other(x)).view(2, 2, 8)


@pytest.fixture(scope="module")
def traced():
    """The program of the two outputs, as the backend has it before it makes groups."""
    torch.manual_seed(0)
    options = {"budget": "1GiB", "effort": 0.1}
    module = torch.compile(TwoOutputs(), backend=backend.schedsim, options=options)
    one, other = module(torch.randn(4, 6))
    (one.sum() + other.sum()).backward()
    session = next(s for o, s in SESSIONS.rows.values() if o == options)
    return session.parts[0].program


@pytest.mark.slow
def test_groups_read_one_number_and_give_what_they_gave(traced):
    """The gradient of the second output is zero, and as large as a number."""
    groups = Groups()
    large = fused(traced, groups)
    found = fused_without(traced, [1], groups, size=GroupSize.LARGE)
    assert [call.name for call in found.calls] == [call.name for call in large.calls]
    zero = found.values[found.tangents[1]]
    assert zero.stride == (0, 0, 0)
    assert found.storages[zero.storage].size_bytes == 4
    assert large.storages[zero.storage].size_bytes == 4 * 4 * 8
    assert found.values[found.tangents[0]] == large.values[large.tangents[0]]
    assert keeps_layouts(found)
    places = zip(large.calls, found.calls, strict=True)
    [(call, again)] = [(a, b) for a, b in places if a.target is not b.target]
    inputs = [
        torch.randn(large.values[ref.value].shape)
        if ref.value != large.tangents[1]
        else torch.zeros(zero.shape)
        for ref in call.args
    ]
    numbers = [
        torch.zeros(()).expand(t.shape) if ref.value == large.tangents[1] else t
        for ref, t in zip(call.args, inputs, strict=True)
    ]
    for a, b in zip(
        call.target.uncompiled(*inputs), again.target.uncompiled(*numbers), strict=True
    ):
        assert torch.equal(a, b)
        assert a.stride() == b.stride()


@pytest.mark.slow
def test_kernels_that_would_read_it_have_no_such_form(traced):
    """The gradient of the first output goes into a product of matrices as it comes."""
    assert fused_without(traced, [0], Groups(), size=GroupSize.LARGE) is None


@pytest.mark.parametrize(("traced_as", "is_kept"), [((8, 1), True), ((1, 4), False)])
def test_outputs_in_another_layout_are_seen(traced_as, is_kept):
    """The sine of one number that is read everywhere comes in rows, as of no transposed tensor."""
    program = chain_program((4, 8))
    for v in (0, 2):
        program.values[v].stride = traced_as
    group, inputs = Groups().make(program, [0], [2])
    program.calls = [Call("group", group, tuple(Ref(v) for v in inputs), {}, outputs=[2])]
    assert keeps_layouts(program)
    program.values[0].stride = (0, 0)
    assert keeps_layouts(program) == is_kept


def test_a_gradient_that_is_handed_on_stays_whole():
    """The gradient of an input that is an output, too, is the given one."""
    program = chain_program((4, 8))
    program.tangents = [2]
    program.input_gradients = {0: 2}
    assert with_zero_gradients(program, [0]) is None

"""Graphs with open sizes under compile=True: a compiled part for each size that comes."""

from __future__ import annotations

import itertools
import warnings

import pytest

torch = pytest.importorskip("torch")

from fused_steps import assert_close  # noqa: E402
from schedsim.validation.compiled.group import FusedGroup  # noqa: E402
from schedsim.validation.drop_in.backend import SESSIONS  # noqa: E402
from schedsim.validation.drop_in.parts import sized_parts  # noqa: E402
from schedsim.validation.guards.plan_variants import PlainStepWarning  # noqa: E402
from torch import nn  # noqa: E402


@pytest.fixture(autouse=True)
def _groups_run_op_by_op(uncompiled):
    """What inductor makes of a group is tested elsewhere."""
    torch._dynamo.reset()


_budgets = itertools.count(10**7)
"""Torch hands a copy of the options on: a budget of its own tells each session."""


class _Lengths(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, ids):
        x = self.table(ids)
        for layer in self.layers:
            x = x + torch.tanh(layer(x)) * ids.shape[1]
        return x


def _gradients(call, model, ids):
    model.zero_grad()
    call(ids).square().mean().backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def _compiled(model, **more):
    options = {"budget": next(_budgets), "compile": True, "effort": 0.1}
    call = torch.compile(model, backend="schedsim", options=options, **more)
    return call, lambda: next(s for given, s in SESSIONS.rows.values() if given == options)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [None, True])
def test_each_length_is_compiled_for_itself(dynamic):
    torch.manual_seed(0)
    model = _Lengths()
    call, session = _compiled(model, dynamic=dynamic, fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PlainStepWarning)
        for length in (5, 7, 9, 7, 5):
            ids = torch.randint(11, (4, length))
            assert_close(_gradients(call, model, ids), _gradients(model, model, ids))
    parts = session().parts
    # The first length comes first with its own sizes, and then as one of the open ones.
    assert len(parts) == (4 if dynamic is None else 3)
    for part in parts:
        assert any(isinstance(call.target, FusedGroup) for call in part.program.calls)


@pytest.mark.slow
def test_beyond_the_most_sizes_steps_run_uncompiled_and_then_as_they_are(monkeypatch):
    monkeypatch.setattr(sized_parts, "MOST_SIZES", 2)
    torch.manual_seed(0)
    model = _Lengths()
    call, session = _compiled(model, dynamic=True)
    for length in (5, 7):
        _gradients(call, model, torch.randint(11, (4, length)))
    ids = torch.randint(11, (4, 9))
    with pytest.warns(PlainStepWarning, match="beyond 2 sizes of one graph it runs uncompiled"):
        found = _gradients(call, model, ids)
    assert_close(found, _gradients(model, model, ids))
    program = session().parts[-1].program
    assert not any(isinstance(call.target, FusedGroup) for call in program.calls)
    monkeypatch.setattr(sized_parts, "MOST_PARTS", 3)
    ids = torch.randint(11, (4, 11))
    with pytest.warns(PlainStepWarning, match="beyond 3 sizes of one graph it runs as it is"):
        found = _gradients(call, model, ids)
    assert_close(found, _gradients(model, model, ids))
    assert len(session().parts) == 3


@pytest.mark.slow
def test_equal_groups_of_two_graphs_are_one():
    """The layer behind a graph break is the one before it."""

    class Broken(_Lengths):
        def forward(self, ids):
            x = self.table(ids)
            x = torch.tanh(self.layers[0](x)) * 2
            torch._dynamo.graph_break()
            return torch.tanh(self.layers[1](x)) * 2

    model = Broken()
    del model.layers[2]
    call, session = _compiled(model)
    ids = torch.randint(11, (4, 5))
    assert_close(_gradients(call, model, ids), _gradients(model, model, ids))
    one, two = (
        {id(call.target) for call in part.program.calls if isinstance(call.target, FusedGroup)}
        for part in session().parts
    )
    assert one & two

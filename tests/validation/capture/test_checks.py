"""Checks are ops of the graph: they run once, in their half, behind the draws before them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.capture import capture  # noqa: E402
from schedsim.validation.capture.checks import AssertOp, CheckOp, unnoticed  # noqa: E402
from schedsim.validation.costs import measured_costs  # noqa: E402
from torch import nn  # noqa: E402

aten = torch.ops.aten


class Factorized(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.drop = nn.Linear(4, 4), nn.Dropout(0.5)

    def forward(self, x):
        hidden = self.drop(self.linear(x))
        factor = torch.linalg.cholesky(hidden @ hidden.T + 9 * torch.eye(len(x)))
        return self.drop(factor).sum()


def checks_of(captured):
    calls = captured.program.calls
    return [i for i, call in enumerate(calls) if isinstance(call.target, CheckOp)]


def test_a_check_is_an_op_without_bytes():
    captured = capture(Factorized(), (torch.randn(3, 4),))
    (at,) = checks_of(captured)
    call = captured.program.calls[at]
    assert call.once
    assert call.phase == "forward"
    assert not call.outputs
    draws = [i for i, other in enumerate(captured.program.calls) if other.random]
    assert draws[0] in call.tokens
    assert draws[1] not in call.tokens
    assert at in captured.program.calls[captured.program.seed].tokens
    op = next(op for op in captured.graph.ops if op.name == call.name)
    assert set(op.writes.values()) == {0}  # the mark that it has run


def test_it_costs_its_time_and_raises_nothing_when_it_is_measured():
    captured = capture(Factorized(), (torch.randn(3, 4),))
    name = captured.program.calls[checks_of(captured)[0]].name
    costs = measured_costs(captured, use_cache=False, target_s=0)
    assert costs.time_s[name] > 0
    CheckOp(aten._assert_async.msg).probe(torch.zeros((), dtype=torch.bool), "no")


def test_a_check_in_backward_runs_there():
    class Asked(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            torch._assert_async((gradient < 9).all(), "too large")
            return gradient * 2

    class Net(nn.Linear):
        def forward(self, x):
            return Asked.apply(super().forward(x)).sum()

    captured = capture(Net(4, 4), (torch.randn(3, 4),))
    (at,) = checks_of(captured)
    assert captured.program.calls[at].phase == "backward"
    assert at > captured.program.seed


def test_an_assert_raises_what_python_raises():
    found = AssertOp(aten._assert_async.msg)
    found(torch.tensor(True), "no")
    with pytest.raises(AssertionError, match=r"^no$"):
        found(torch.tensor(False), "no")
    with pytest.raises(AssertionError, match=r"^$"):
        found(torch.tensor(False), "assertion error")


def test_ops_of_the_user_note_nothing_in_comparisons():
    noted = []
    with unnoticed():
        CheckOp(noted.append)(3)
    CheckOp(noted.append)(4)
    assert noted == [4]

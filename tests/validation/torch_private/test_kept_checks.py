"""Ops that return nothing stay in traces, without tokens."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.torch_private import fake_tensors, joint_graphs, kept_checks  # noqa: E402
from schedsim.validation.torch_private.graph_roles import (  # noqa: E402
    output_roles,
    placeholder_role,
)
from schedsim.validation.torch_private.recorded_joints import record_joint  # noqa: E402

aten = torch.ops.aten


class Factorized(torch.nn.Module):
    def forward(self, x):
        torch._assert_async((x < 9).all(), "too large")
        return torch.linalg.cholesky(x @ x.T).sum()


@pytest.mark.parametrize("trace", [joint_graphs.export_joint, record_joint])
def test_a_trace_keeps_checks(trace):
    mode = fake_tensors.fake_mode()
    x = mode.from_tensor(torch.rand(3, 3), static_shapes=True).requires_grad_()
    graph = trace(Factorized(), (x,), mode).graph
    targets = [node.target for node in graph.nodes]
    assert aten._assert_async.msg in targets
    assert aten._linalg_check_errors.default in targets
    roles = [placeholder_role(n) for n in graph.nodes if n.op == "placeholder"]
    assert {role.kind for role in roles} == {"input", "tangent"}
    assert {role.kind for _, role in output_roles(graph)} == {"output", "gradient"}


def test_what_returns_nothing():
    found = kept_checks.returns_nothing
    assert found(aten._assert_async.msg)
    assert found(aten._linalg_check_errors.default)
    assert not found(aten.add.Tensor)
    assert not found(torch.add)
    assert not found(aten._assert_tensor_metadata.default)  # a trace has settled it


def test_torch_is_as_before():
    before = torch.fx.Node.is_impure
    with kept_checks.checks_kept():
        assert torch.fx.Node.is_impure is not before
    assert torch.fx.Node.is_impure is before


def test_an_assert_of_python_is_known_by_its_line():
    graph = torch.fx.Graph()
    node = graph.call_function(torch._assert_async, (graph.placeholder("x"), "no"))
    for line, known in (
        ("assert x, 'no'", True),
        ("if y: assert(x)", True),
        ("torch._assert_async(x, 'no')", False),
    ):
        node.meta["stack_trace"] = f'  File "model.py", line 3, in forward\n    {line}\n'
        assert kept_checks.is_python_assert(node) == known
    node.meta.clear()
    assert not kept_checks.is_python_assert(node)

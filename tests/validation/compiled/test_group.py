"""Groups as functions."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from fused_steps import chain_program  # noqa: E402
from schedsim.validation.compiled.group import Groups  # noqa: E402

aten = torch.ops.aten


def test_a_group_is_its_ops():
    group, inputs = Groups().make(chain_program(), [0, 1, 2], [3, 4])
    a, b = torch.randn(4, 8), torch.randn(4, 8)
    given = [(a, b)[v] for v in inputs]
    product, total = group.uncompiled(*given)
    torch.testing.assert_close(product, a.sin() * b)
    torch.testing.assert_close(total, (a.sin() * b).sum(0))


def test_equal_code_is_one_group_and_other_shapes_are_another():
    groups = Groups()
    first, _ = groups.make(chain_program(), [0, 1], [3])
    second, _ = groups.make(chain_program(), [0, 1], [3])
    assert first is second
    other, _ = groups.make(chain_program((2, 8)), [0, 1], [3])
    fewer, _ = groups.make(chain_program(), [0, 1, 2], [4])
    assert len({first.__name__, other.__name__, fewer.__name__}) == 3


def test_an_output_written_in_place_of_an_argument(uncompiled):
    """The argument comes first, and is the output."""
    group, inputs = Groups().make(chain_program(), [0, 1, 2], [3, 4])
    a, b = torch.randn(4, 8), torch.randn(4, 8)
    expected = a.sin() * b
    position = inputs.index(1)
    product, total = group.overwriting(position, 0)(b, a)
    assert product is b
    torch.testing.assert_close(b, expected)
    torch.testing.assert_close(total, expected.sum(0))

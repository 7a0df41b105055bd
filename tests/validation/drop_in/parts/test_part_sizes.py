"""Bytes of a part at sizes that were not measured."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.capture.program import Call, Program, Ref, Storage, Value  # noqa: E402
from schedsim.validation.capture.varying_sizes import VaryingSize  # noqa: E402
from schedsim.validation.drop_in.parts.joint_part import OpenSize  # noqa: E402
from schedsim.validation.drop_in.parts.part_sizes import PartSizes  # noqa: E402

from schedsim import Graph, Op  # noqa: E402


def sizes():
    """One op that reads 4 s0 bytes and writes 8 s0."""
    length = VaryingSize("s0")
    program = Program(
        values=[
            Value(0, (length,), (1,), torch.float32, torch.device("cpu")),
            Value(1, (length,), (1,), torch.float64, torch.device("cpu"), 0),
        ],
        storages=[
            Storage(VaryingSize("4*s0"), "input"),
            Storage(VaryingSize("8*s0"), "computed", 0),
        ],
        calls=[Call("double", torch.ops.aten.exp.default, (Ref(0),), {}, outputs=[1])],
        inputs={0: 0},
    )
    return PartSizes(program, {"s0": OpenSize(1, 0, "L['x'].size()[1]", 10, 64, 64)})


def measured(length, workspace, extra=0):
    op = Op("double", workspace_bytes=workspace, reads=("input0",))
    op = Op("double", "forward", 0, workspace, ("input0",), {"double": 8 * length + extra})
    return Graph("part", (op,), inputs={"input0": 4 * length})


def test_tensors_follow_formulas_and_workspaces_do_not_shrink():
    part = sizes()
    assert part.read([None, torch.ones(7)]) == (7,)
    part.note((10,), measured(10, 100, extra=16))
    tensors, workspaces = part.at((10,))
    assert (tensors.tolist(), workspaces.tolist()) == ([40, 96], [100])
    tensors, workspaces = part.at((5,))
    assert (tensors.tolist(), workspaces.tolist()) == ([20, 56], [100])
    tensors, workspaces = part.at((20,))
    assert tensors.tolist() == [80, 176]
    assert 200 * 0.9 <= workspaces[0] <= 200  # as the bytes that it touches grow
    part.note((20,), measured(20, 130))
    assert part.at((5,))[1].tolist() == [100]  # the least that was measured at larger sizes
    assert part.at((15,))[1].tolist() == [130]
    assert np.all(part.at((40,))[1] >= 260)


def test_limits():
    """By dimension, or as torch was told."""
    part = sizes()
    assert part.limit((10,), {}) == (64,)
    assert part.limit((10,), {1: 32}) == (32,)
    assert part.limit((100,), {1: 32}) == (100,)
    assert part.limit((10,), {0: 32}) == (64,)
    assert part.in_words((10,)) == ", at L['x'].size()[1] = 10"
    assert part.in_words((10,), (12,)) == ", at L['x'].size()[1] = 10, 12"


@pytest.mark.parametrize(
    ("sources", "words"),
    [
        (["L['n'][0]", "L['n'][1]"], ", at L['n'][0..1] = (3, 4), (5, 2)"),
        (["L['n'][1]", "L['n'][0]"], ", at (L['n'][1], L['n'][0]) = (3, 4), (5, 2)"),
        (["a.size()[0]", "b.size()[0]"], ", at (a.size()[0], b.size()[0]) = (3, 4), (5, 2)"),
    ],
)
def test_several_sizes_in_words(sources, words):
    opened = {f"s{k}": OpenSize(k, -1, at, 4, None, 8) for k, at in enumerate(sources)}
    part = PartSizes(Program([], [], [], inputs={}), opened)
    assert part.in_words((3, 4), (5, 2)) == words

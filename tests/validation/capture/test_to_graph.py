"""A program as a graph: calls are ops, storages are tensors."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from made_programs import call, tensor  # noqa: E402
from schedsim.validation.capture.program import Program, Ref  # noqa: E402
from schedsim.validation.capture.to_graph import (  # noqa: E402
    op_calls,
    result_storages,
    tensor_names,
    to_graph,
)

aten = torch.ops.aten


def step() -> Program:
    """x, w -> mm -> (view) -> dropout -> loss, its gradient, and that of w, summed in place."""
    program = Program()
    x = tensor(program, (4, 8), kind="input")
    w = tensor(program, (8, 8), kind="static")
    scale = tensor(program, (3,), kind="static")
    y = tensor(program, (4, 8))
    call(program, "mm", aten.mm.default, (Ref(x), Ref(w)), y)
    view = tensor(program, (32,), base=y)
    call(program, "view", aten.view.default, (Ref(y), [32]), view, is_view=True)
    one, mask = tensor(program, (16,)), tensor(program, (16,), dtype=torch.bool)
    call(
        program, "drop", aten.native_dropout.default, (Ref(view),), one, mask,
        is_tuple=True, random=True, optional=(1,),
    )  # fmt: skip
    loss = tensor(program, ())
    call(program, "loss", aten.sum.default, (Ref(one),), loss, phase="loss")
    seed = tensor(program, (), kind="tangent")
    program.seed = len(program.calls)
    call(program, "loss.grad", torch.ones_like, (Ref(loss),), seed, phase="backward", once=True)
    dw = tensor(program, (8, 8))
    call(
        program, "dw", aten.mul.Tensor, (Ref(seed), Ref(mask), Ref(scale)), dw, phase="backward",
        tokens=(0,),
    )  # fmt: skip
    total = tensor(program, (8, 8))
    call(
        program, "dw.sum", aten.add.Tensor, (Ref(dw), Ref(dw)), total, phase="backward",
        takes_over=dw,
    )  # fmt: skip
    program.inputs[0], program.parameters["w"] = x, w
    program.outputs, program.tangents = [loss], [seed]
    program.gradients["w"] = total
    program.constants[scale] = torch.zeros(3)
    return program


def test_ops_are_all_calls_but_views():
    """With what they read and write, by storage; views vanish into what they look at."""
    graph = to_graph(step(), "step", 100)
    assert graph.op_names == ("mm", "drop", "loss", "loss.grad", "dw", "dw.sum")
    drop = graph.ops[1]
    assert drop.reads == ("mm",)
    assert drop.writes == {"drop:0": 64, "drop:1": 16}
    assert drop.optional == ("drop:1",)
    assert [op.phase for op in graph.ops][-4:] == ["loss", "backward", "backward", "backward"]
    assert graph.ops[3].once
    assert op_calls(step()) == [0, 2, 3, 4, 5, 6]


def test_what_must_have_run_writes_an_empty_token():
    """And who waits for it reads that."""
    graph = to_graph(step(), "step", 0)
    assert graph.ops[0].writes == {"mm": 128, "mm:ran": 0}
    assert "mm:ran" in graph.ops[4].reads


def test_storage_that_is_taken_over_is_in_place():
    """The sum overwrites the part that it reads last."""
    graph = to_graph(step(), "step", 0)
    assert graph.ops[5].in_place == {"dw.sum": "dw"}


def test_what_is_resident_and_what_lives_to_the_end():
    """Constants are static; inputs and gradients stay; the loss does not, unless it is held."""
    graph = to_graph(step(), "step", 100)
    assert graph.static_bytes == 100 + 12
    assert graph.inputs == {"input0": 128}
    assert graph.results == ("input0", "dw.sum")
    program = step()
    program.held = [program.loss]
    names = tensor_names(program)
    assert [names[s] for s in result_storages(program)] == ["input0", "loss", "dw.sum"]

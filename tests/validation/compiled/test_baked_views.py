"""Views taken at once from the tensor that was computed."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from fused_steps import assert_close, captured_step, gated, left_by  # noqa: E402
from schedsim.validation.capture.program import Call, Program, Ref, Storage, Value  # noqa: E402
from schedsim.validation.capture.to_graph import to_graph  # noqa: E402
from schedsim.validation.compiled.baked_views import bake_views  # noqa: E402
from schedsim.validation.compiled.fuse import fused  # noqa: E402
from schedsim.validation.compiled.group import Groups  # noqa: E402
from schedsim.validation.compiled.joining import JoinedRuns  # noqa: E402
from schedsim.validation.torch_private.storage_refs import reinterpreted  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim.errors import SchedsimError  # noqa: E402

aten = torch.ops.aten


def a_program(steps, kind="input"):
    """Views one after another of a tensor of 2 x 3 x 4, and what each of them is."""
    program = Program()
    program.storages.append(Storage(96, kind))
    made = [torch.arange(24.0).reshape(2, 3, 4)]
    program.values.append(Value(0, (2, 3, 4), (12, 4, 1), torch.float32, made[0].device))
    for index, (target, *args) in enumerate(steps):
        result = target(made[-1], *args)
        is_tuple = isinstance(result, list | tuple)
        parts = list(result) if is_tuple else [result]
        outputs = []
        for position, part in enumerate(parts):
            outputs.append(len(program.values))
            program.values.append(
                Value(0, tuple(part.shape), part.stride(), part.dtype, part.device, index, position)
            )
            made.append(part)
        given = (Ref(outputs[0] - 1), *args)
        call = Call(f"view {index}", target, given, {}, outputs, is_tuple, is_view=True)
        program.calls.append(call)
    return program, made


CHAINS = {
    "transposed": [
        (aten.transpose.int, 0, 1),
        (aten.slice.Tensor, 0, 1, 3),
        (aten.select.int, 2, 3),
    ],
    "split": [(aten.slice.Tensor, 1, 1, 3), (aten.split.Tensor, 1, 2), (aten.unsqueeze.default, 0)],
    "expanded": [
        (aten.select.int, 0, 1),
        (aten.unsqueeze.default, 0),
        (aten.expand.default, [5, 3, 4]),
    ],
    "reshaped": [(aten.view.default, [6, 4]), (aten.t.default,), (aten.unbind.int, 0)],
}


@pytest.mark.parametrize("offset", [0, 7])
@pytest.mark.parametrize("name", CHAINS)
def test_every_view_of_a_chain_comes_from_the_root_at_once(name, offset):
    """Wherever the root lies in its own storage."""
    program, made = a_program(CHAINS[name])
    baked = bake_views(program)
    wide = torch.zeros(offset + 24)
    root = wide[offset:].view(2, 3, 4).copy_(made[0])
    for value, expected in zip(baked.values[1:], made[1:], strict=True):
        call = baked.calls[value.call]
        assert call.target is reinterpreted
        assert call.args[0] == Ref(0)
        assert not call.is_tuple
        found = reinterpreted(root, *call.args[1:])
        assert torch.equal(found, expected)
        assert found.stride() == expected.stride()
        assert found.untyped_storage().data_ptr() == root.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        ((aten.view.dtype, torch.int32), "input"),
        ((aten.as_strided.default, [2, 2], [1, 1], 3), "input"),
        ((aten.transpose.int, 0, 1), "computed"),
    ],
    ids=["another format", "an offset in the storage", "a root of an unknown kernel"],
)
def test_what_is_uncertain_stays_as_it_is(step, kind):
    program, _ = a_program([step], kind)
    assert bake_views(program).calls == program.calls


def baked_step():
    model, inputs, loss = gated()
    captured = captured_step(model, inputs, loss)
    program = fused(captured.program, Groups())
    graph = to_graph(program, "fused", captured.graph.static_bytes)
    captured = replace(captured, program=program, graph=graph)

    def join(graph, runs):
        return JoinedRuns(bake_views(program), tuple(runs), {})

    module = replace(captured, join=join).module(schedsim.Schedule.store_all(graph))
    return model, inputs, loss, module, bake_views(program)


@pytest.mark.slow
def test_a_step_with_baked_views_is_the_plain_one(uncompiled):
    model, inputs, loss, module, program = baked_step()
    assert all(call.target is reinterpreted for call in program.calls if call.is_view)
    expected = left_by(lambda x, t: loss(model(x), t), model, inputs)
    assert_close(left_by(module, model, inputs), expected)


@pytest.mark.slow
def test_a_parameter_in_another_layout_is_refused(uncompiled):
    """A baked view would read it as it was laid out before."""
    model, inputs, _, module, _ = baked_step()
    linear = next(m for m in model.modules() if isinstance(m, nn.Linear))
    linear.weight.data = linear.weight.data.t().contiguous().t()
    with pytest.raises(SchedsimError, match="the model is not as captured"):
        module(*inputs)

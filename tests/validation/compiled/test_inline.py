"""Cheap values that backward computes again."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from fused_steps import assert_close, captured_step, convolutional, gated, left_by  # noqa: E402
from schedsim.validation.capture.to_graph import tensor_names, to_graph  # noqa: E402
from schedsim.validation.compiled.clusters import StorageReaders  # noqa: E402
from schedsim.validation.compiled.decompose import decompose  # noqa: E402
from schedsim.validation.compiled.fuse import fused  # noqa: E402
from schedsim.validation.compiled.group import Groups  # noqa: E402
from schedsim.validation.compiled.inline import inline_cheap  # noqa: E402
from torch import nn  # noqa: E402

from schedsim import Schedule  # noqa: E402


def saved(program):
    """Storages made before the hand-over to autograd and read after it."""
    reading = StorageReaders(program)
    return {
        storage
        for storage, maker in reading.maker.items()
        if maker < program.seed and any(r > program.seed for r in reading.readers.get(storage, ()))
    }


def size_of(program, storages):
    return sum(program.storages[s].size_bytes for s in storages)


@pytest.mark.slow
def test_an_activation_is_not_saved_beside_its_argument():
    """The backward of silu(a) * b reads a and b; silu(a) follows from a."""
    program = decompose(captured_step(*gated(1)).program)
    before = saved(program)
    inline_cheap(program)
    after = saved(program)
    # Beside it, a maximum and a sum for each row of logits are saved.
    assert size_of(program, before) - size_of(program, after) >= 32 * 32 * 4 - 2 * 32 * 4


class Parted(nn.Module):
    """An activation whose parts are read one by one, as in Mamba 2."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        a, b, c = nn.functional.silu(self.up(x)).transpose(0, 1).split([8, 8, 8], 0)
        return self.down((a * b.exp() + c.sin()).transpose(0, 1))


@pytest.mark.slow
def test_groups_compute_parts_of_an_activation_again():
    """A copy of `split` had one output: inductor failed on its group, and the step with it."""
    torch.manual_seed(0)
    step = captured_step(Parted(), (torch.randn(16, 8), torch.randn(16, 8)), nn.functional.mse_loss)
    groups = Groups()
    fused(step.program, groups)
    made = [group for group in groups.known.values() if "split" in group.ops]
    assert made
    for group in made:
        arguments = [torch.randn(shape, dtype=dtype) for shape, _, dtype, _ in group.inputs]
        assert all(isinstance(it, torch.Tensor) for it in group.uncompiled(*arguments))


@pytest.mark.slow
@pytest.mark.parametrize("make", [gated, convolutional])
def test_nothing_more_is_saved(make):
    program = decompose(captured_step(*make()).program)
    before = saved(program)
    inline_cheap(program)
    more = saved(program) - before
    exchanged = size_of(program, before - saved(program))
    # A tensor for one of its size, and a maximum and a sum for each row of 10.
    assert size_of(program, more) <= exchanged + 2 * 32 * 4


@pytest.mark.slow
def test_makers_are_known_by_their_places():
    program = decompose(captured_step(*gated()).program)
    inline_cheap(program)
    for i, call in enumerate(program.calls):
        for v in call.outputs:
            assert v < 0 or program.values[v].call == i
            if v >= 0 and not call.is_view:
                assert program.storages[program.values[v].storage].call == i


def test_logits_are_kept_instead_of_their_logarithms(uncompiled):
    """Otherwise both would need room at the same time, in the forward of each language model."""
    torch.manual_seed(0)
    model, inputs = nn.Linear(4, 512), (torch.randn(64, 4), torch.randint(512, (64,)))
    loss = nn.functional.cross_entropy
    captured = captured_step(model, inputs, loss)
    program = fused(captured.program, Groups())
    logits_bytes = 64 * 512 * 4
    made = [
        call
        for call in program.calls
        if not call.is_view
        and size_of(program, {program.values[v].storage for v in call.outputs})
        in range(logits_bytes, 2 * logits_bytes)
    ]
    assert len(made) == 2  # logits, and their gradients in the same place
    assert made[1].takes_over >= 0
    reductions = [call for call in program.calls if "amax" in str(getattr(call.target, "key", ""))]
    assert len(reductions) == 1
    assert "aten.log.default" in reductions[0].target.key  # which reads the logits no second time
    module = replace(
        captured, program=program, graph=to_graph(program, "fused", captured.graph.static_bytes)
    )
    module = module.module(Schedule.store_all(module.graph))
    expected = left_by(lambda x, t: loss(model(x), t), model, inputs)
    assert_close(left_by(module, model, inputs), expected)


def test_a_sign_follows_from_what_the_norm_behind_it_reads(uncompiled):
    """The backward of a convolution must be given a ReLU's output; that of the norm, nothing."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten()
    )
    inputs, loss = (torch.randn(8, 3, 16, 16), torch.randn(8, 4 * 12 * 12)), nn.functional.mse_loss
    captured = captured_step(model, inputs, loss)
    program = fused(captured.program, Groups())
    reading = StorageReaders(program)
    size = 8 * 8 * 14 * 14 * 4
    relu, convolved = (
        next(
            s
            for s, name in tensor_names(program).items()
            if name.startswith(start) and program.storages[s].size_bytes == size
        )
        for start in ("2.relu", "0.convolution")
    )
    late = {s: [r for r in reading.readers[s] if r > program.seed] for s in (relu, convolved)}
    [kernel] = late[relu]
    assert program.calls[kernel].target is torch.ops.aten.convolution_backward.default
    assert min(late[convolved]) > kernel
    graph = to_graph(program, "fused", captured.graph.static_bytes)
    expected = left_by(lambda x, t: loss(model(x), t), model, inputs)
    step = replace(captured, program=program, graph=graph).module(Schedule.store_all(graph))
    assert_close(left_by(step, model, inputs), expected)

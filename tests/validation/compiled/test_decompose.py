"""Ops in the parts that inductor fuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from fused_steps import captured_step, convolutional, gated  # noqa: E402
from schedsim.validation.capture.capture import capture  # noqa: E402
from schedsim.validation.capture.dropout import dropout_by_factor, eager_factor  # noqa: E402
from schedsim.validation.capture.program import refs  # noqa: E402
from schedsim.validation.capture.to_graph import to_graph  # noqa: E402
from schedsim.validation.compiled.decompose import decompose  # noqa: E402
from schedsim.validation.compiled.fuse import fused  # noqa: E402
from schedsim.validation.compiled.fusible import fusible_target, is_draw  # noqa: E402
from schedsim.validation.compiled.group import FusedGroup, Groups  # noqa: E402
from schedsim.validation.torch_private import inductor_calls as inductor  # noqa: E402

import schedsim  # noqa: E402
from schedsim import Schedule  # noqa: E402

aten = torch.ops.aten


def targets(program):
    return [call.target for call in program.calls]


@pytest.mark.slow
def test_normalisation_is_taken_apart_and_products_are_not():
    parts = targets(decompose(captured_step(*gated()).program))
    assert aten.native_layer_norm.default not in parts
    assert aten.rsqrt.default in parts
    assert aten.addmm.default in parts


class Experts(torch.nn.Module):
    """A product of float32 for each expert's tokens, all in one op."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3, 8, 16))
        self.register_buffer("ends", torch.tensor([4, 10, 16], dtype=torch.int32))

    def forward(self, x):
        return torch._grouped_mm(x, self.weight, offs=self.ends)


def test_torch_prints_no_error_where_it_cannot_size_products_of_experts(caplog):
    step = captured_step(Experts(), (torch.randn(16, 8),), lambda y: y.square().sum())
    caplog.clear()
    parts = targets(decompose(step.program))
    assert torch.ops.aten._grouped_mm.default in parts
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


class Buckets(torch.nn.Module):
    """Chooses weights by buckets with a border at zero, which some inputs are."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8))

    def forward(self, x):
        return (self.weight[torch.bucketize(x, torch.linspace(-1, 1, 7))] * x.cos()).sum()


def test_evenly_spaced_numbers_are_those_of_eager(uncompiled):
    """Inductor's own are off by a rounding in the middle, and its buckets would be others."""
    model, x = Buckets(), torch.tensor([-0.5, 0.0, 0.0, 0.7])
    expected = model(x)
    module = schedsim.rematerialize(model, (x,), "100%", compile=True)
    assert torch.allclose(module(x), expected)
    assert "within rounding" in module.report()


def test_dropout_draws_one_seed_each_at_once():
    """No part draws from the generator but the seeds, which no schedule may repeat."""
    program = decompose(captured_step(*gated(3, dropout=0.5)).program)
    [first] = [call for call in program.calls if call.random]
    assert first.once
    assert first.args[0] == 3
    assert program.storages[program.values[first.outputs[0]].storage].size_bytes == 24


class Beside(torch.nn.Module):
    """Two branches whose draws no data keeps in order, as of an encoder and a decoder."""

    def __init__(self, between=torch.nn.Identity) -> None:
        super().__init__()
        self.left, self.right = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.drops = torch.nn.ModuleList(torch.nn.Dropout(0.5) for _ in range(3))
        self.between = between()

    def forward(self, x):
        left = self.drops[0](self.left(x))
        noise = self.between(x)
        return self.drops[2](self.drops[1](self.right(x)) + left) + noise


class Permuted(torch.nn.Module):
    """Draws that inductor leaves to the generator."""

    def forward(self, x):
        return x[torch.randperm(x.shape[0])]


def test_dropout_of_branches_draws_from_seeds_too():
    """The draws keep their order by their seeds: nothing else has to wait for anything."""
    inputs = torch.randn(4, 8), torch.randn(4, 8)
    captured = captured_step(Beside(), inputs, torch.nn.functional.mse_loss)
    assert any(call.random and call.tokens for call in captured.program.calls)
    program = decompose(captured.program)
    assert [call.target for call in program.calls if call.random] == [inductor.draw_seeds]
    assert sum(is_draw(call.target) for call in program.calls) == 3
    assert not any(call.tokens for call in program.calls)


def test_draws_of_the_generator_keep_their_place_beside_the_seeds():
    """As in inductor, whose seeds are drawn where the first of them is needed."""
    inputs = torch.randn(4, 8), torch.randn(4, 8)
    model = torch.nn.Sequential(Permuted(), Beside(Permuted), Permuted())
    captured = captured_step(model, inputs, torch.nn.functional.mse_loss)
    program = decompose(captured.program)
    draws = [call for call in program.calls if call.random]
    assert [call.target for call in draws].index(inductor.draw_seeds) == 1
    assert len(draws) == 4
    order = [call for call in fused(captured.program, Groups()).calls if call.random]
    assert [call.target for call in order] == [call.target for call in draws]


class Shifted(torch.nn.Module):
    """Adds integers that are drawn, in a number format of their own."""

    def forward(self, x):
        return x + torch.randint(3, 9, x.shape, dtype=torch.int32) + torch.randint(2, x.shape)


class Recurrent(torch.nn.Module):
    """Dropout between the layers of an LSTM and beside it, and in modules of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = (
            torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5)) for _ in range(2)
        )
        self.lstm = torch.nn.LSTM(8, 8, 2, dropout=0.3, batch_first=True)
        self.drop = torch.nn.Dropout(0.2)

    def forward(self, x):
        return self.after(self.drop(self.lstm(self.before(x))[0]))


def test_a_forward_that_calls_a_recurrent_layer_draws_as_eager():
    """As torch.compile, which leaves it to eager, and draws seeds for the code on either side."""
    inputs = torch.randn(4, 3, 8), torch.randn(4, 3, 8)
    captured = captured_step(Recurrent(), inputs, torch.nn.functional.mse_loss)
    draws = [call for call in decompose(captured.program).calls if call.random]
    eager, seeds = torch.ops.aten.native_dropout.default, inductor.draw_seeds
    assert [call.target for call in draws] == [seeds, eager, eager, seeds]
    assert [call.module for call in draws[1:3]] == ["lstm", "drop"]
    program = fused(captured.program, Groups())
    assert [call.target for call in program.calls if call.random] == [seeds, eager, eager, seeds]
    assert to_graph(program, "step", 0).num_ops == sum(not call.is_view for call in program.calls)


def test_all_draws_are_those_of_eager_where_inductor_is_told_so():
    """`torch._inductor.config.fallback_random`, by which compiled steps are compared with eager."""
    traced = captured_step(*gated(3, dropout=0.5)).program
    with torch._inductor.config.patch(fallback_random=True):
        program = decompose(traced)
    kept = [call.target for call in program.calls if call.random]
    assert kept == [call.target for call in traced.calls if call.random]
    assert not any(is_draw(call.target) for call in program.calls)


def test_integers_are_drawn_from_seeds_too():
    inputs = torch.randn(4, 8), torch.randn(4, 8)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), Shifted(), torch.nn.Dropout(0.5))
    program = decompose(captured_step(model, inputs, torch.nn.functional.mse_loss).program)
    [first] = [call for call in program.calls if call.random]
    assert first.args[0] == 3
    drawn = [call for call in program.calls if is_draw(call.target)]
    integers = inductor.random_integer_op()
    assert [call.target for call in drawn] == [integers, integers, inductor.random_op()]
    assert [call.args[:2] for call in drawn[:2]] == [(3, 9), (0, 2)]
    assert {program.values[call.outputs[0]].dtype for call in drawn[:2]} == {torch.int64}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_that_eager_scales_otherwise_is_inductors_too(dtype):
    """Its numbers come from a seed and its factor is 1 / (1 - p), in both halves.

    Plain steps scale it by another factor, by an op of ours that inductor does not know.
    """
    p = 0.15 if dtype == torch.float32 else 0.1
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(p)).to(dtype)
    inputs = torch.randn(4, 8, dtype=dtype), torch.randn(4, 8, dtype=dtype)
    captured = captured_step(model, inputs, torch.nn.functional.mse_loss)
    assert any(call.target is dropout_by_factor for call in captured.program.calls)
    program = decompose(captured.program)
    [first] = [call for call in program.calls if call.random]
    assert first.target is inductor.draw_seeds
    [drawn] = [call for call in program.calls if is_draw(call.target)]
    assert program.values[drawn.outputs[0]].dtype == torch.float32
    factors = [a for call in program.calls for a in call.args if isinstance(a, float)]
    assert factors.count(1.0 / (1.0 - p)) == 2
    assert eager_factor(p, dtype) not in factors


@pytest.mark.slow
def test_what_is_not_taken_apart_is_kept():
    """The backward of pooling and updates of statistics stay as they are."""
    before = captured_step(*convolutional()).program
    after = decompose(before)
    for target in (aten.max_pool2d_with_indices_backward.default, aten.copy_.default):
        count = targets(before).count(target)
        assert count
        assert targets(after).count(target) == count


@pytest.mark.slow
def test_what_reads_running_statistics_runs_once():
    """A repeat would read statistics that the step has changed; other parts may repeat."""
    program = decompose(captured_step(*convolutional()).program)
    running = {v for name, v in program.buffers.items() if "running" in name}
    readers = [c for c in program.calls if running & set(refs((c.args, c.kwargs)))]
    computing = [c for c in readers if c.target is not aten.copy_.default]
    assert len(running) == len(computing) == 4
    assert all(call.once for call in readers)
    rooted = [call for call in program.calls if call.target is aten.rsqrt.default]
    assert rooted
    assert not any(call.once for call in rooted)


@pytest.mark.slow
def test_pooling_is_a_loop_that_others_join():
    """Inductor's loop for it takes half of the kernel's time on the CPU."""
    model, inputs, loss = convolutional()
    before = captured_step(model, inputs, loss).program
    assert aten.max_pool2d_with_indices.default in targets(before)
    after = decompose(before)
    assert aten.max_pool2d_with_indices.default not in targets(after)
    pooling = [t for t in targets(after) if "max_pool" in str(t) and "backward" not in str(t)]
    assert pooling
    assert all(map(fusible_target, pooling))


def test_the_halves_keep_their_sides():
    before = captured_step(*gated()).program
    after = decompose(before)
    assert after.calls[after.seed].target is before.calls[before.seed].target
    for i, call in enumerate(after.calls):
        assert call.is_view or (call.phase == "backward") == (i >= after.seed)


class Upsampled(torch.nn.Module):
    """An activation, read at more places by an interpolation."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        y = torch.sigmoid(x * self.scale[:, None, None])
        return torch.nn.functional.interpolate(y, scale_factor=2, mode="bilinear")


def test_the_gradient_of_an_interpolation_is_one_kernel_and_no_scatters():
    """Torch's rules would scatter it four times, each time into a tensor of zeros."""
    captured = captured_step(
        Upsampled(),
        (torch.randn(2, 3, 4, 4), torch.randn(2, 3, 8, 8)),
        torch.nn.functional.mse_loss,
    )
    parts = targets(decompose(captured.program))
    assert parts.count(aten.upsample_bilinear2d_backward.default) == 1
    assert not {aten._unsafe_index_put.default, aten.index_put.default} & set(parts)


class _TensorsGivenTwice(torch.nn.Module):
    """One op on arguments some of which are one tensor."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 8))

    def forward(self, x):
        y = self.weight * x
        y = (y + y) * (y + x) + (x + y)
        return torch.addcmul(y, y, x) + torch.addcmul(y, x, x)


def test_a_tensor_that_is_two_arguments_is_traced_by_itself():
    """`y + y` is no trace of `y + x`, although both read tensors of one form."""
    torch.manual_seed(0)
    model, x = _TensorsGivenTwice(), torch.randn(4, 8)
    captured = captured_step(model, (x,), lambda made: made.sum())
    model(x).sum().backward()
    expected, model.weight.grad = model.weight.grad, None
    found = replace(captured, program=fused(captured.program, Groups()))
    found = replace(found, graph=to_graph(found.program, "repeated", 0))
    for call in found.program.calls:
        if isinstance(call.target, FusedGroup):
            call.target.run_by_op()
    found.module(Schedule.store_all(found.graph))(x).backward()
    torch.testing.assert_close(model.weight.grad, expected)


@pytest.mark.parametrize(
    "norm",
    [torch.nn.BatchNorm2d(8), torch.nn.BatchNorm2d(8, affine=False), torch.nn.GroupNorm(2, 8)],
)
def test_norms_under_autocast_are_taken_apart(norm):
    """Their kernels keep statistics in float32, where inductor's parts say bfloat16."""
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), norm, torch.nn.Flatten())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        program = capture(model, (torch.randn(2, 3, 6, 6),), lambda out: out.float().sum()).program
    parts = decompose(program)
    assert any("norm" in str(call.target) for call in program.calls)
    assert not any("norm" in str(call.target) for call in parts.calls)
    for one, other in zip(program.values, parts.values, strict=False):
        assert one.dtype == other.dtype

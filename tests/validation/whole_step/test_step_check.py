"""The comparison of the planned step with the plain one."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402
from schedsim.validation.guards.differential import Both, NotCompared  # noqa: E402
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from schedsim.validation.whole_step import step_check  # noqa: E402
from schedsim.validation.whole_step.step_check import no_room_elsewhere, no_room_for  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim.errors import SchedsimError  # noqa: E402


@pytest.mark.parametrize("check", [0, True, "sometimes", 2.5])
def test_a_check_that_says_nothing_is_refused(check):
    with pytest.raises(SchedsimError, match="check="):
        schedsim.rematerialize(nn.Linear(2, 2), torch.ones(2, 2), "100%", torch.sum, check=check)


def a_line():
    """A model that both levels can plan, and its inputs."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4)))
    return model, torch.randn(64, 8), torch.randn(64, 8)


def test_what_was_compared_is_said():
    model, x, target = a_line()
    options = {"effort": 0.1}
    module = schedsim.rematerialize(model, (x, target), "90%", F.mse_loss, **options)
    assert "check          loss, gradients, buffers and generators are" in module.report()
    module = schedsim.rematerialize(model, (x, target), "90%", F.mse_loss, check="never", **options)
    assert "check          not compared with the plain step" in module.report()


def test_gradients_of_the_losss_own_parameters_are_left_as_they_are():
    """Planning by blocks runs the loss; its parameters have no gradient afterwards."""

    class Weighted(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8))

        def forward(self, y, target):
            return ((y - target).square() * self.weight).mean()

    model, x, target = a_line()
    loss = Weighted()
    module = schedsim.rematerialize(model, (x, target), "90%", loss, level="block")
    assert loss.weight.grad is None
    module(x, target).backward()
    found, loss.weight.grad = loss.weight.grad, None
    loss(model(x), target).backward()
    assert torch.equal(found, loss.weight.grad)


def test_an_optimizer_that_steps_in_backward_does_not_step_while_planning():
    model, x, target = a_line()
    before = [p.detach().clone() for p in model.parameters()]
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: p.data.add_(p.grad))
    for level in ("op", "block"):
        schedsim.rematerialize(model, (x, target), "90%", F.mse_loss, level=level, effort=0.1)
    assert all(map(torch.equal, before, model.parameters()))


def test_bytes_left_over_are_not_compared(monkeypatch):
    """A dry device's results are no numbers; a step that differs there is none that is refused."""
    monkeypatch.setattr(step_check, "has_values", lambda device: False)
    monkeypatch.setattr(step_check, "Both", None)
    model, x, target = a_line()
    planned = schedsim.rematerialize(model, (x, target), "90%", F.mse_loss, effort=0.1)
    assert "the dry device computes no values" in planned.report()


def test_a_step_for_which_there_is_no_room_is_not_run(monkeypatch):
    """Half of the host's memory is the limit, or what is free on disk; the line says the bytes."""
    monkeypatch.setattr(step_check, "device_memory_bytes", lambda device: 2000)
    monkeypatch.setattr(step_check.shutil, "disk_usage", lambda folder: SimpleNamespace(free=500))
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert no_room_for(1000, cpu) is None
    assert no_room_for(1001, cpu) == "that takes 1.00 kB (0.98 KiB)"
    assert no_room_elsewhere(500, cpu) is None
    assert no_room_elsewhere(1000, cuda) is None
    assert "the host's memory has no room" in no_room_elsewhere(1001, cuda)
    model, x, target = a_line()
    for module in (
        schedsim.rematerialize(model, (x, target), "90%", F.mse_loss, effort=0.1),
        schedsim.rematerialize(model, x, "90%", in_place=True, effort=0.1),
    ):
        report = schedsim.drop_in_report(model) if module is model else module.report()
        assert "not compared with the plain step: what it saves takes" in report


@pytest.mark.parametrize("error", [OSError("no space"), NotCompared("no space")])
def test_a_comparison_that_finds_no_room_on_the_way_ends_no_training(monkeypatch, error):
    """As of a disk that is full by then."""

    def raises(self, *given, **options):
        raise error

    monkeypatch.setattr(Both, "difference", raises)
    torch._dynamo.reset()
    model, x, target = a_line()
    module = schedsim.rematerialize(model, (x, target), "90%", F.mse_loss, effort=0.1)
    assert "check          not compared with the plain step: no space" in module.report()
    schedsim.rematerialize(model, x, "90%", in_place=True, effort=0.1)
    assert "not compared with the plain step: no space" in schedsim.drop_in_report(model)


def measured_comparisons(monkeypatch):
    """Bytes of the comparisons of steps that come, by the allocator's record."""
    peaks, honest = [], Both.difference

    def measured(self, *given, **options):
        [reading] = AllocatorMeter().read(lambda: honest(self, *given, **options))
        peaks.append(reading.peak_bytes)
        return reading.result

    monkeypatch.setattr(Both, "difference", measured)
    return peaks


@pytest.mark.parametrize("door", ["whole", pytest.param("in place", marks=pytest.mark.slow)])
def test_a_plan_is_compared_within_its_budget(monkeypatch, door):
    """A device that holds the budget alone has no room for what the plain step keeps."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(12)))
    x = torch.randn(1024, 16)
    resident = storage_bytes([*model.parameters(), x])
    loss = lambda y: y.square().mean()  # noqa: E731
    [plain] = AllocatorMeter().read(lambda: loss(model(x)).backward())
    model.zero_grad()
    budget = resident + int(0.6 * plain.peak_bytes)
    peaks = measured_comparisons(monkeypatch)
    if door == "whole":
        module = schedsim.rematerialize(model, x, budget, loss, effort=0.1)
        report = module.report()
    else:
        schedsim.rematerialize(model, x, budget, in_place=True, effort=0.1)
        report = schedsim.drop_in_report(model)
    assert "are the plain step's to the bit" in report
    [peak] = peaks
    assert resident + peak <= budget < resident + plain.peak_bytes


class Separable(nn.Module):
    """A depthwise convolution between batch norms, which take the scale of its weights out again.

    So the gradient of the first norm's weight is a sum that cancels, and inductor adds it up in
    float32, where PyTorch's kernel uses float64.
    """

    def __init__(self):
        super().__init__()
        self.wide = nn.Conv2d(8, 16, 1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False)
        self.behind = nn.BatchNorm2d(16)
        self.out = nn.Conv2d(16, 8, 1)

    def forward(self, x):
        y = F.hardswish(self.norm(self.wide(x)))
        return x + self.out(F.hardswish(self.behind(self.depthwise(y))))


class Faulty(nn.Module):
    """A planned step of which one gradient is off, or which reads an old weight."""

    def __init__(self, planned, parameter, of_gradient=0.0, of_weight=0.0):
        super().__init__()
        self.__dict__["planned"] = planned
        self.__dict__["parameter"] = parameter
        self.of_gradient, self.of_weight = of_gradient, of_weight

    def forward(self, *inputs):
        parameter = self.parameter
        if self.of_weight:
            parameter.data = parameter.data * (1 + self.of_weight * torch.randn_like(parameter))
        loss = self.planned(*inputs)
        if self.of_gradient:
            parameter.register_hook(self._off)
        return loss

    def _off(self, gradient):
        """Without a part of its largest entry, as where one term of a sum is left out."""
        off = torch.zeros_like(gradient)
        at = gradient.abs().argmax()
        off.view(-1)[at] = self.of_gradient * gradient.reshape(-1)[at]
        return gradient - off


@pytest.mark.slow
def test_a_sum_that_cancels_is_as_exact_as_torch_compiles_and_faults_are_refused_still():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        Separable(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 10),
    )
    x = torch.randn(4, 3, 16, 16)

    def loss(out):
        return out.square().mean()

    module = schedsim.rematerialize(model, x, "80%", loss, compile=True, level="op")
    planned = module.prepare(x)
    assert "torch.compile's own are up to" in planned.check_note
    settings, separable = module._plans.settings, model[1]

    def difference(parameter, **fault):
        faulty = replace(planned, module=Faulty(planned.module, parameter, **fault))
        return step_check.compare(model, settings, faulty, (x,), {})[1]

    assert difference(separable.norm.weight) is None
    for parameter in (separable.norm.weight, separable.wide.weight, separable.out.bias):
        found = difference(parameter, of_gradient=1e-3)
        assert found is not None
        assert not found.rounding
        parameter._backward_hooks.clear()
    for parameter in (separable.wide.weight, separable.depthwise.weight, separable.out.weight):
        found = difference(parameter, of_weight=1e-3)
        assert found is not None
        assert not found.rounding

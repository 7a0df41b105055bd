"""Plans made on the command line, applied in Python; schedules that change while training."""

from __future__ import annotations

import json
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.targets import load_target  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim.cli.app import run as main  # noqa: E402

LEVELS = ("op", "block")
FILE = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    blocks = (nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Dropout(0.1)) for _ in range(6))
    return nn.Sequential(*blocks), (torch.randn(256, 32), torch.randn(256, 32)), LOSS

LOSS = nn.functional.mse_loss
"""


@pytest.fixture
def built(tmp_path, monkeypatch):
    """A file with a model, its path, and what it builds."""
    path = tmp_path / "a_model.py"
    path.write_text(FILE)
    monkeypatch.chdir(tmp_path)
    yield path, load_target(f"{path}:build")
    sys.modules.pop("a_model", None)


def gradients(model, step):
    """Loss and gradients of a step from a fixed start."""
    model.zero_grad()
    torch.manual_seed(3)
    loss = step()
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("level", LEVELS)
def test_a_plan_of_the_command_line_trains_the_model_in_python(built, level, capsys):
    path, target = built
    model, inputs, loss = target.model, target.inputs, target.loss
    call = ["plan", f"{path}:build", "--level", level]
    assert main([*call, "--mem", "1GB", "--json"]) == 0
    most = json.loads(capsys.readouterr().out)["peak_bytes"]
    size = int(most * (0.8 if level == "op" else 0.9))
    assert main([*call, "--mem", str(size), "-o", "plan.json"]) == 0
    module = schedsim.apply(model, "plan.json", inputs, loss)
    assert module.level == level
    assert module.plan.peak_bytes <= size
    found = gradients(model, lambda: module(*inputs))
    plain = gradients(model, lambda: loss(model(inputs[0]), inputs[1]))
    assert all(map(torch.equal, plain, found))
    assert sum(module.run_counts.values()) == len(module.plan.schedule.names)
    other = nn.Sequential(*list(model)[:5])
    with pytest.raises(schedsim.SchedsimError, match="is not of this step"):
        schedsim.apply(other, "plan.json", inputs, loss)


@pytest.mark.parametrize("level", LEVELS)
def test_a_schedule_changes_with_the_stage_of_training(built, level):
    """Between steps: another budget, then a saved plan; the weights are the plain loop's."""
    _, target = built
    inputs, loss = target.inputs, target.loss
    weights, num_runs = [], []
    for scheduled in (False, True):
        model = load_target(f"{built[0]}:build").model
        torch.manual_seed(0)
        optimizer = torch.optim.AdamW(model.parameters())
        step = lambda m=model: loss(m(inputs[0]), inputs[1])  # noqa: E731
        if scheduled:
            module = schedsim.rematerialize(model, inputs, "150%", loss, level=level, effort=0.2)
            early = module.plan
            step = lambda: module(*inputs)  # noqa: E731, B023
        for number in range(6):
            if scheduled and number == 2:
                watcher = schedsim.watch(module)
                tight = watcher(*inputs, budget="88%")
                assert tight.peak_bytes < early.peak_bytes
            if scheduled and number == 4:
                module.use(early, *inputs)
                assert module.plan.schedule.names == early.schedule.names
            optimizer.zero_grad()
            step().backward()
            optimizer.step()
            if scheduled:
                num_runs.append(sum(module.run_counts.values()))
        weights.append(list(model.state_dict().values()))
    assert all(map(torch.equal, *weights))
    assert num_runs[0] == num_runs[1] == num_runs[4] == num_runs[5]
    assert num_runs[2] == num_runs[3] > num_runs[0]


def test_a_watcher_plans_again_for_a_new_shape():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(4)))
    x, target = torch.randn(2048, 32), torch.randn(2048, 32)
    module = schedsim.rematerialize(
        model, (x[:256], target[:256]), "100%", nn.functional.mse_loss, level="block"
    )
    first = module.plan
    watcher = schedsim.watch(module)
    with pytest.raises(schedsim.InfeasibleBudgetError):
        watcher(x, target)
    again = watcher(x, target, budget="90%")
    assert again.peak_bytes > first.peak_bytes
    with watcher:
        module(x, target).backward()
    assert watcher.measured_bytes[-1] <= again.peak_bytes

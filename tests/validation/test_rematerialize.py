"""One call from a model and a budget to a module that trains within it."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from schedsim.validation.rematerialized import Rematerialized  # noqa: E402
from tiers import slow_where  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402

LOSS = nn.functional.mse_loss
LEVELS = ("op", "block")


def a_model(num=6, dropout=0.1):
    """A line of small blocks, and a step's inputs."""
    torch.manual_seed(0)
    blocks = (nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Dropout(dropout)) for _ in range(num))
    return nn.Sequential(*blocks), (torch.randn(512, 32), torch.randn(512, 32))


def made(level, budget="75%", **options):
    """A rematerialized module, the plain model and the inputs."""
    model, inputs = a_model()
    options = {"effort": 0.3, "level": level, **options}
    return schedsim.rematerialize(model, inputs, budget, LOSS, **options), model, inputs


def gradients(model, step):
    """Loss and gradients of a step from a fixed start."""
    model.zero_grad()
    torch.manual_seed(3)
    loss = step()
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("budget", ["60%", "85%"])
def test_a_step_fits_and_gives_the_gradients_of_the_model_to_the_bit(level, budget):
    module, model, inputs = made(level, budget)
    assert module.plan.peak_bytes <= module.budget_bytes
    assert sum(module.counted().values()) == module.plan.peak_bytes
    found = gradients(model, lambda: module(*inputs))
    plain = gradients(model, lambda: LOSS(model(inputs[0]), inputs[1]))
    assert all(map(torch.equal, plain, found))
    assert sum(module.run_counts.values()) == len(module.plan.schedule.names)


@pytest.mark.parametrize("level", LEVELS)
def test_the_measured_peak_is_the_predicted_one(level):
    module, model, inputs = made(level)
    for parameter in model.parameters():
        parameter.grad = None
    # The allocator sees what kernels take besides, which both levels plan for.
    resident = storage_bytes([list(model.parameters()), inputs])
    [reading] = AllocatorMeter().read(lambda: module(*inputs).backward())
    peak = resident + reading.peak_bytes
    random_states = 5056 * 6  # kept in host memory for repeats
    assert peak <= module.budget_bytes + random_states
    assert abs(peak - module.plan.peak_bytes) <= 0.001 * peak + random_states


def test_it_is_the_model_for_all_that_looks_at_its_state(tmp_path):
    module, model, _ = made("op")
    assert list(module.state_dict()) == list(model.state_dict())
    pairs = zip(module.named_parameters(), model.named_parameters(), strict=True)
    assert all(a == b and p is q for (a, p), (b, q) in pairs)
    assert len(list(module.modules())) == len(list(model.modules()))
    torch.save(module.state_dict(), tmp_path / "weights.pt")
    other, _ = a_model()
    with torch.no_grad():
        other[0][0].weight.zero_()
    other.load_state_dict(torch.load(tmp_path / "weights.pt"))
    assert torch.equal(other[0][0].weight, model[0][0].weight)
    with torch.no_grad():
        other[0][0].weight.fill_(2.0)
    module.load_state_dict(other.state_dict())
    assert float(model[0][0].weight.detach().mean()) == 2.0
    assert isinstance(module.eval(), Rematerialized)
    assert not model.training
    assert not model[0].training
    module.train()
    assert model.training
    assert module.to(torch.float64) is module
    assert model[0][0].weight.dtype == torch.float64


@pytest.mark.slow
def test_it_trains_on_in_another_number_format():
    module, model, inputs = made("block")
    module.double()
    module(*(x.double() for x in inputs)).backward()
    assert model[0][0].weight.grad.dtype == torch.float64
    assert len(module.plans) == 2


@pytest.mark.parametrize("level", LEVELS)
def test_eval_and_no_grad_run_the_plain_model(level):
    module, model, inputs = made(level)
    module.eval()
    assert torch.equal(module(inputs[0]), model(inputs[0]))
    assert torch.equal(module(*inputs), LOSS(model(inputs[0]), inputs[1]))
    module.train()
    with torch.no_grad():
        assert not module(*inputs).requires_grad


@pytest.mark.slow
def test_each_shape_is_planned_once_and_few_are_kept():
    module, model, (x, target) = made("block", max_shapes=2)
    first = module.plan
    module(x[:256], target[:256]).backward()
    model.zero_grad()
    assert module.plan is first
    assert module.last_plan is not first
    module(x, target)
    assert module.last_plan is first
    module(x[:128], target[:128])
    assert len(module.plans) == 2
    assert first in module.plans
    module(x[:64], target[:64])
    assert first not in module.plans
    assert module.plan is first
    assert all(plan.budget_bytes == first.budget_bytes for plan in module.plans)
    module.replan("95%")
    module(x[:64], target[:64])
    assert module.plan is module.last_plan


def test_another_shape_is_refused_by_choice():
    module, _, (x, target) = made("block", shapes="raise")
    with pytest.raises(schedsim.SchedsimError, match=r"input 0 has shape \(256, 32\) instead"):
        module(x[:256], target[:256])


@pytest.mark.parametrize("level", slow_where(LEVELS, lambda level: level == "op"))
def test_a_budget_too_small_names_the_least_and_what_sets_it(level):
    with pytest.raises(schedsim.InfeasibleBudgetError, match=r"set by \w") as caught:
        made(level, "5%")
    least = caught.value.min_feasible_bytes
    assert str(least) in caught.value.hint
    module, _, inputs = made(level, least)
    module(*inputs).backward()
    assert module.plan.peak_bytes <= least


@pytest.mark.parametrize("budget", ["soon", "0%", True, 0, -5, 2.5, "x%"])
def test_a_budget_that_says_nothing_is_refused(budget):
    with pytest.raises(schedsim.SchedsimError) as caught:
        made("block", budget)
    assert caught.value.hint


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about a machine without CUDA")
def test_a_device_that_is_not_here_is_no_budget():
    with pytest.raises(schedsim.SchedsimError, match="no CUDA device"):
        made("block", "cuda:0")


@pytest.mark.parametrize("level", LEVELS)
def test_optimizer_state_takes_its_place_in_the_budget(level):
    bare, with_state = made(level)[0], made(level, optimizer=10_000)[0]
    assert with_state.plan.static_bytes == bare.plan.static_bytes + 10_000
    assert with_state.counted()["optimizer"] == 10_000
    assert "as given" in with_state.report()
    assert "not counted" in bare.report()


@pytest.mark.parametrize("level", slow_where(LEVELS, lambda level: level == "block"))
def test_a_saved_plan_is_applied_to_its_model_only(level, tmp_path):
    module, model, inputs = made(level, optimizer="adamw")
    schedsim.save(module.plan, tmp_path / "plan.json")
    again = schedsim.apply(model, tmp_path / "plan.json", inputs, LOSS)
    assert again.plan.schedule == module.plan.schedule
    found = gradients(model, lambda: again(*inputs))
    assert all(map(torch.equal, gradients(model, lambda: module(*inputs)), found))
    deeper, _ = a_model(7)
    with pytest.raises(schedsim.SchedsimError, match="the plan does not run"):
        schedsim.apply(deeper, tmp_path / "plan.json", inputs, LOSS)
    fewer = [x[:100] for x in inputs]
    with pytest.raises(schedsim.SchedsimError, match="not of this step"):
        schedsim.apply(model, tmp_path / "plan.json", fewer, LOSS)


def test_a_copy_trains_its_own_parameters():
    module, model, inputs = made("op")
    twin = copy.deepcopy(module)
    twin(*inputs).backward()
    assert all(p.grad is None for p in model.parameters())
    assert all(p.grad is not None for p in twin.parameters())


def test_importing_loads_no_torch():
    code = "import sys, schedsim; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_torch_the_remedy_is_named():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import schedsim\n"
        "try: schedsim.rematerialize\n"
        "except schedsim.MissingDependencyError as error: assert 'schedsim[torch]' in error.hint\n"
        "else: raise SystemExit('no error')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_model_in_evaluation_mode_is_put_in_training_mode_with_a_line():
    """Its own loop would go on without dropout, as with a pretrained model."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)) for _ in range(2)))
    x, target = torch.randn(16, 8), torch.randn(16, 8)
    with pytest.warns(UserWarning, match="Sequential was in evaluation mode.* in_place=True"):
        schedsim.rematerialize(model.eval(), (x, target), "100%", nn.functional.mse_loss)
    assert all(module.training for module in model.modules())

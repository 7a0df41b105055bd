"""Store-all by blocks holds what the plain step holds, and frees it when the plain step does."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.block_level import capture_chain  # noqa: E402
from schedsim.validation.models import build_model  # noqa: E402
from schedsim.validation.steps import PLAIN, MeasuredSteps  # noqa: E402
from schedsim.validation.targets import LoadedTarget, capture_target  # noqa: E402
from small_models import SMALL  # noqa: E402
from torch import nn  # noqa: E402

from schedsim.simulation.schedule import Schedule  # noqa: E402
from schedsim.simulation.simulator import simulate  # noqa: E402

CASES = {name: SMALL[name] for name in ("vit", "resnet", "unet")}
# Its weights belong to all blocks, and are larger than its activations.
CASES["lstm"] = ("lstm", {"seq": 8, "hidden": 256, "features": 32, "batch": 2, "steps": 2})


@pytest.mark.parametrize("name", CASES)
def test_store_all_takes_what_the_plain_step_takes(name):
    """Outputs go where their backward starts, gradients behind their last use; all as predicted.

    Gradients of shared weights are added up as autograd adds them up.
    """
    kind, options = CASES[name]
    model, inputs, loss = build_model(kind, **options)
    target = LoadedTarget(name, model, inputs, loss)
    captured = capture_target(target, rounds=0)
    everything = Schedule.store_all(captured.workload)
    steps = MeasuredSteps(target, captured, {"store-all": everything})
    stored = steps.peak("store-all").total_bytes
    assert abs(stored - steps.peak(PLAIN).total_bytes) <= (4096 if name == "lstm" else 64)
    assert abs(stored - simulate(captured.workload, everything).peak_bytes) <= 64


def frozen(kind, num, **options):
    """A small model without gradients for its first `num` parts."""
    model, inputs, loss = build_model(kind, **options)
    captured = capture_chain(model, inputs, loss, rounds=0)
    for part in captured.layout.parts[:num]:
        for module in part.modules:
            module.requires_grad_(False)
    return LoadedTarget(kind, model, inputs, loss)


@pytest.mark.parametrize(("num", "left"), [(1, 4), (3, 3)])
def test_frozen_first_parts_hold_nothing(num, left):
    """An embedding goes to the first trained block; frozen blocks become one part.

    Of 5 parts; gradients are those of the plain step, also where the first part is replayed.
    """
    target = frozen("gpt2", num, layers=3, hidden=32, heads=2, seq=64, vocab=100, batch=2)
    captured = capture_target(target, rounds=0)
    assert captured.chain.num_stages == left
    everything = Schedule.store_all(captured.workload)
    names = [*everything.names]
    names.insert(names.index("B0"), "F0")
    replayed = Schedule.from_names(names)
    steps = MeasuredSteps(target, captured, {"store-all": everything, "replayed": replayed})
    plain, stored = (steps.peak(name).total_bytes for name in (PLAIN, "store-all"))
    kept = 0 if num == 1 else captured.chain.stages[0].output_bytes
    assert abs(stored - plain) <= 64 + kept
    assert abs(stored - simulate(captured.workload, everything).peak_bytes) <= 64
    for name in ("store-all", "replayed"):
        assert all(map(torch.equal, steps.results(name), steps.results(PLAIN)))


def test_a_frozen_first_part_that_computes_stays_a_part():
    """To run it again would take its time: the patches of a ViT are products."""
    target = frozen(SMALL["vit"][0], 1, **SMALL["vit"][1])
    captured = capture_target(target, rounds=0)
    assert len(captured.layout.parts[0].modules) == 1
    assert not any("no gradient" in note for note in captured.notes)


def test_forwards_behind_their_backward_are_left_out():
    """Nothing needs them, and what they would read is gone."""
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))
    x = torch.randn(4, 8)
    captured = capture_chain(model, x, lambda y: y.square().mean(), rounds=0)
    names = ["F0", "F1", "F2", "loss", "B2", "B1", "F2", "B0", "F0"]
    module = captured.module(Schedule.from_names(names))
    module(x).backward()
    found = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x).square().mean().backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(found, model.parameters(), strict=True))
    assert module.run_counts["F2"] == 2


@pytest.mark.parametrize("watched", [False, True])
def test_gradients_of_shared_weights_are_added_up(watched):
    """Behind gradients from before the step as well, and where a hook watches each part."""
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))
    shared = model[2].weight = model[0].weight
    x = torch.randn(4, 8)
    captured = capture_chain(model, x, lambda y: y.square().mean(), rounds=0)
    assert [len(group) for group in captured.layout.shared] == [1, 0, 0]
    if watched:
        shared.register_hook(lambda gradient: 2 * gradient)
    for resident in (False, True):
        results = []
        for step in (captured.module(Schedule.store_all(captured.workload)), model):
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter) if resident else None
            out = step(x)
            (out if out.ndim == 0 else out.square().mean()).backward()
            results.append([p.grad.clone() for p in model.parameters()])
        assert all(map(torch.allclose, *results))

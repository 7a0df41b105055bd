"""One step over eager blocks: what is alive, what is kept, and what is refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from replayed_blocks import recompute_everything  # noqa: E402
from schedsim.validation.block_level import capture_chain  # noqa: E402
from schedsim.validation.models import build_model  # noqa: E402
from small_models import SMALL, outcome  # noqa: E402
from torch import nn  # noqa: E402

from schedsim import Schedule  # noqa: E402
from schedsim.errors import SchedsimError  # noqa: E402


def test_frozen_blocks_need_no_backward():
    """The first blocks frozen, as in fine-tuning."""
    name, options = SMALL["gpt2"]
    model, inputs, loss = build_model(name, **{**options, "tied": False})
    for block in model[:3]:
        block.requires_grad_(False)
    captured = capture_chain(model, inputs, loss, rounds=0)
    module = captured.module(recompute_everything(captured.chain))
    torch.manual_seed(0)
    loss(model(*inputs)).backward()
    plain = [p.grad for p in model.parameters() if p.requires_grad]
    model.zero_grad()
    torch.manual_seed(0)
    module(*inputs).backward()
    found = [p.grad for p in model.parameters() if p.requires_grad]
    assert all(map(torch.equal, plain, found))
    assert all(p.grad is None for block in model[:3] for p in block.parameters())


def test_a_step_that_is_never_finished_frees_what_it_kept():
    """No reference cycle through autograd keeps the bundles."""
    from schedsim.validation.measure import StorageTracker

    model, inputs, loss = build_model("mlp", layers=3, hidden=64, batch=64)
    captured = capture_chain(model, inputs, loss, rounds=0)
    module = captured.module(Schedule.store_all(captured.chain))
    with StorageTracker() as tracker:
        value = module(*inputs)
        assert tracker.live_bytes > 3 * 64 * 64 * 4
        module.run_counts = {}
        del value
        assert tracker.live_bytes < 1000


def test_what_is_alive_is_what_the_schedule_says():
    """Values, bundles and gradients after every run: as many as its op needs from then on."""

    class Watching:
        def __init__(self) -> None:
            self.seen = []

        def begin(self, number, run, step):
            self.seen.append((run.name, sorted(step.values), sorted(step.bundles)))

        def end(self, number, run, step):
            pass

    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    captured = capture_chain(model, torch.randn(2, 4), lambda y: y.sum(), rounds=0)
    module = captured.module(recompute_everything(captured.chain))
    module.observer = watching = Watching()
    module(torch.randn(2, 4)).backward()
    assert [name for name, _, _ in watching.seen] == module.run_names
    bundles = {name: kept for name, _, kept in watching.seen}
    # Nothing is kept until the replays, and then one bundle at a time.
    assert [bundles[name] for name in ("loss", "B2", "B1", "B0")] == [[], [2], [1], [0]]
    assert module.run_counts == {name: module.run_names.count(name) for name in module.run_names}


def test_a_loss_that_is_no_scalar_is_refused():
    """With its shape; and what is no tensor."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    captured = capture_chain(model, torch.randn(2, 4), lambda y: y.sum(), rounds=0)
    module = captured.module(Schedule.store_all(captured.chain))
    module.loss = lambda y: y
    with pytest.raises(SchedsimError, match=r"Tensor of shape \(2, 4\)"):
        module(torch.randn(2, 4))
    module.loss = lambda y: 3
    with pytest.raises(SchedsimError, match="the loss is a int"):
        module(torch.randn(2, 4))


def test_autograd_keeps_what_stays_and_only_the_rest_is_packed(monkeypatch):
    """A tensor packed costs a call of Python; where the input is evicted between, it must be."""
    from schedsim.validation.block_level.runtime import BlockStep

    model = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 4))
    inputs = (torch.randn(2, 4),)
    captured = capture_chain(model, inputs, lambda y: y.square().mean(), rounds=0)
    plain = outcome(model, lambda: model(*inputs).square().mean())
    packed = []
    packing = BlockStep._packing
    monkeypatch.setattr(
        BlockStep, "_packing", lambda *given: packed.append(given[1]) or packing(*given)
    )
    loss = (3,)
    for names, expected in (
        ("F0 F1 F2 loss B2 B1 B0", {loss}),
        ("F0 F1 F2 loss F1 B2 F0 B1 B0", {loss, (1,), (2,)}),
    ):
        packed.clear()
        module = captured.module(Schedule.from_names(names.split()))
        assert all(map(torch.equal, plain, outcome(model, lambda: module(*inputs))))  # noqa: B023
        assert set(packed) - {(2,)} == expected - {(2,)}  # the last part's, if its output may go

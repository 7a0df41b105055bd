"""The peak of a step: equal to what the step takes when it really runs, and the same every time."""

from __future__ import annotations

import gc

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from schedsim.validation.measure.storage import StorageTracker
from schedsim.validation.memory_tests import step_peak
from schedsim.validation.models.named_models import build_model
from tiers import slow_where
from torch import nn
from torch.utils.checkpoint import checkpoint

from schedsim.errors import SchedsimError, UnsupportedError


def real_peak(model, inputs, loss):
    """Bytes at the peak of the step run on memory, by the meter of validation."""
    gc.collect()
    with StorageTracker() as tracker:
        tracker.add([*model.parameters(), *model.buffers()], "static")
        tracker.add((inputs, list(loss.buffers()) if loss is not None else []), "input")
        (model(*inputs) if loss is None else loss(model(*inputs))).backward()
    return tracker.peak.total_bytes


SMALL = {
    "gpt2": {"layers": 2, "hidden": 64, "heads": 4, "vocab": 500, "seq": 64, "batch": 2},
    "resnet50": {"batch": 2, "image": 32},
    "vit-b16": {"layers": 2, "hidden": 64, "heads": 4, "image": 64, "batch": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_where(SMALL, lambda name: name != "gpt2"))
def test_a_step_on_fakes_takes_what_the_real_one_takes(name):
    """To the byte, of three models; random states and kernels' own workspace are in neither."""
    model, inputs, loss = build_model(name, **SMALL[name])
    fake = step_peak(model, inputs, loss, kernels="native")
    assert fake.total_bytes == real_peak(model, inputs, loss)
    assert sum(tensor.size_bytes for tensor in fake.tensors) == fake.total_bytes


class Checkpointed(nn.Module):
    def __init__(self, on):
        super().__init__()
        self.on = on
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in range(4)
        )

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.on else layer(x)
        return x.square().mean()


@pytest.mark.slow
def test_checkpoints_count_as_they_run():
    """Recomputation in the backward pass has names of its own, and the bytes of the real run."""
    model, x = Checkpointed(True), torch.zeros(256, 32)
    peak = step_peak(model, (x,), kernels="native")
    assert peak.total_bytes == real_peak(model, (x,), None)
    assert peak < step_peak(Checkpointed(False), (x,))
    assert any(t.name.startswith("recompute.layers.") for t in peak.tensors)


@pytest.mark.slow
def test_compile_keeps_checkpoints_and_its_own_saved_tensors():
    """A compiled model is counted as its partitioner splits it, and a checkpoint stays one."""
    x = torch.zeros(256, 32)
    plain, kept = (torch.compile(Checkpointed(on)) for on in (False, True))
    assert step_peak(plain, (x,)).compiled
    assert step_peak(kept, (x,)) < step_peak(plain, (x,))
    names = {t.name for t in step_peak(plain, (x,)).tensors if t.role == "gradient"}
    assert names <= {f"{name}.grad" for name, _ in Checkpointed(False).named_parameters()}


def test_a_step_that_nobody_could_allocate():
    """A model of 1.6 billion parameters: nothing is made, and the parts add up."""
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(20000, 20000, bias=False) for _ in range(4)))
        x = torch.zeros(4096, 20000)
    peak = step_peak(model, (x,), lambda y: y.sum(), optimizer="adamw")
    weights = 4 * 20000 * 20000 * 4
    roles = peak.by_role()
    assert roles["static"] == weights
    assert roles["optimizer"] == 2 * weights + 4 * 4  # and counts of steps
    assert roles["input"] == 4096 * 20000 * 4
    assert peak > "19GB"


@pytest.mark.slow
def test_equal_steps_have_equal_peaks():
    """20 runs, with garbage in between that the collector takes when it likes."""
    model, x, found = Checkpointed(True), torch.zeros(64, 32), set()
    for _ in range(20):
        cycle = [torch.zeros(10)]
        cycle.append(cycle)
        peak = step_peak(model, (x,))
        found.add((peak.total_bytes, peak.op, peak.tensors))
    assert len(found) == 1
    assert all(p.grad is None for p in model.parameters())


def test_peaks_compare_with_sizes_as_people_write_them():
    """Texts, numbers and other peaks; nothing else."""
    peak = step_peak(Checkpointed(False), (torch.zeros(4, 32),))
    assert peak <= peak.total_bytes
    assert peak < "1GiB"
    assert peak == f"{int(peak)}B"
    assert not peak > peak
    with pytest.raises(TypeError):
        peak < 1.5  # noqa: B015
    with pytest.raises(SchedsimError, match="ambiguous"):
        peak < "1G"  # noqa: B015


class Asking(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        y = self.layer(x).sum()
        return y if y > 0 else -y


@pytest.mark.parametrize(
    ("step", "options", "words"),
    [
        ((Asking(), (torch.zeros(2, 4),)), {}, "without memory"),
        ((nn.Linear(4, 4), (torch.zeros(2, 4),)), {}, "one number"),
        ((nn.Linear(4, 4), (torch.zeros(2, 4),)), {"kernels": "tpu"}, "'native', 'cuda'"),
        ((lambda: 3,), {}, "model, inputs, loss"),
    ],
)
def test_what_cannot_be_counted_is_refused(step, options, words):
    """With the place and the remedy."""
    with pytest.raises(SchedsimError) as caught:
        step_peak(*step, **options)
    assert words in f"{caught.value.message} {caught.value.hint}"
    assert isinstance(caught.value, UnsupportedError) or caught.value.hint

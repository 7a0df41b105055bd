"""What a command may be pointed at: files, built-in models, models of transformers."""

from __future__ import annotations

import gc
import math

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation import block_times  # noqa: E402
from schedsim.validation.block_level import chain_capture  # noqa: E402
from schedsim.validation.targets import load_target, read_target  # noqa: E402

from schedsim import SchedsimError  # noqa: E402
from schedsim.files.workload_files import workload_hash  # noqa: E402
from schedsim.units import format_bytes_short  # noqa: E402

MODEL = """
import torch
from torch import nn


def build(width=8):
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(3)))
    return model, (torch.randn(4, width), torch.zeros(4, dtype=torch.long)), loss


def loss(output, target):
    return nn.functional.cross_entropy(output, target)


def alone():
    model = nn.Linear(2, 2)
    model.example_inputs = torch.ones(1, 2)
    return model


def keywords():
    return nn.Linear(2, 2), {"input": torch.ones(1, 2)}, lambda y: y.sum()


def nothing():
    return 3


def breaks():
    raise RuntimeError("no data\\nhere")
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A file of models; measured times go to a folder of their own, from a busy machine too."""
    monkeypatch.setenv("SCHEDSIM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(block_times, "MOST_SPREAD", math.inf)
    monkeypatch.setattr(chain_capture, "IMPLAUSIBLE", math.inf)
    path = tmp_path / "some_model.py"
    path.write_text(MODEL)
    return path


def test_a_function_of_a_file_is_called_with_its_options(file):
    """(model, inputs, loss), the loss's own input last."""
    target = load_target(f"{file}:build,width=16", "cpu")
    assert target.inputs[0].shape == (4, 16)
    assert target.loss(target.model(target.inputs[0]), target.inputs[1]).ndim == 0
    assert load_target(f"{file}:alone", "cpu").inputs[0].shape == (1, 2)
    assert list(load_target(f"{file}:keywords", "cpu").keywords) == ["input"]


@pytest.mark.parametrize(
    ("ending", "says", "hint"),
    [
        (":biuld", "no function 'biuld'", "'build'"),
        (":nothing", "not (model, inputs, loss)", "loss"),
        (":breaks", "RuntimeError: no data here", "by itself"),
        ("", "names no function", "FILE.py:FUNCTION"),
    ],
)
def test_a_file_that_does_not_build_is_said_in_a_line(file, ending, says, hint):
    """What was looked for, what came, what to do."""
    with pytest.raises(SchedsimError) as refused:
        load_target(f"{file}{ending}", "cpu")
    assert says in refused.value.message
    assert hint in refused.value.hint
    assert "\n" not in refused.value.message


def test_the_same_model_is_the_same_workload_next_time(file):
    """Times are measured once on a machine, so that a plan fits the model again."""
    one, two = (read_target(f"{file}:build", device="cpu").workload for _ in range(2))
    assert workload_hash(one) == workload_hash(two)
    assert one.store_all_s > 0
    again = read_target(f"{file}:build", device="cpu", remeasure=True).workload
    assert again.store_all_s != one.store_all_s
    kept = read_target(f"{file}:build", device="cpu").workload
    assert workload_hash(kept) == workload_hash(again)


def test_a_device_elsewhere_takes_no_memory():
    """GPT-2 of 124 million parameters by rooflines, on the meta device."""
    read = read_target("model:gpt2,seq=64,layers=2", level="op", device="a100-80gb")
    assert all(p.device.type == "meta" for p in read.target.model.parameters())
    assert read.workload.store_all_s > 0
    with pytest.raises(SchedsimError, match="blocks are measured"):
        read_target("model:gpt2", device="a100-80gb")


def test_models_of_transformers_come_from_their_configuration():
    """Sizes by our words; random weights, their own loss."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    text = "hf:gpt2,layers=2,hidden=32,heads=2,vocab=100,seq=16,batch=3"
    target = load_target(text, "cpu")
    assert target.keywords["input_ids"].shape == (3, 16)
    assert target.model(**target.keywords).loss.requires_grad
    with pytest.raises(SchedsimError) as refused:
        load_target("hf:gtp2", "cpu")
    assert "gpt2" in refused.value.hint


@pytest.mark.parametrize("level", ["block", "op"])
def test_a_model_says_which_state_is_counted(level, capsys):
    """Parameters and gradients are, the optimizer is not; its size for AdamW is said.

    A gradient is as large as its parameter, and AdamW has two moments of that size and a count
    of steps, four bytes, for each.
    """
    read = read_target("model:mlp,layers=2,hidden=8,batch=2", level=level, rounds=0)
    parameters = [p for p in read.target.model.parameters() if p.requires_grad]
    size = 4 * sum(p.numel() for p in parameters)
    [line] = [line for line in read.lines if line.startswith("model state: ")]
    assert f"parameters and buffers {format_bytes_short(size)}" in line
    assert f"gradients {format_bytes_short(size)}" in line
    state = 2 * size + 4 * len(parameters)
    assert f"NOT counted: optimizer state, {format_bytes_short(state)} for AdamW" in line


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_model_that_is_gone_takes_no_room_of_the_next_one():
    """Also where only the collector of garbage frees it: later sizes lie as the first one did."""
    text = "model:mlp,layers=3,hidden=1500,batch=4"
    gc.collect()
    gc.disable()
    try:
        found = []
        for _ in range(3):
            target = load_target(text, "cuda")
            found.append(torch.cuda.memory_reserved())
            target.model.itself = [target.model]  # a circle
            del target
    finally:
        gc.enable()
    assert len(set(found)) == 1


def test_a_step_that_the_device_cannot_measure_is_refused_in_a_line(monkeypatch):
    """So that a search for the largest batch goes on below it."""

    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB. GPU 0 has 2.")

    monkeypatch.setattr("schedsim.validation.targets.capture_target", full)
    with pytest.raises(
        SchedsimError, match=r"measured: CUDA out of memory. Tried .* 1 GiB(\nhint|$)"
    ):
        read_target("model:mlp,layers=2,hidden=4,batch=2", device="cpu")

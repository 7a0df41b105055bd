"""The examples of other people's loops: each plain and within a budget, with the peak measured."""

from __future__ import annotations

import importlib
import re
import warnings
from pathlib import Path

import pytest
from tiers import slow_where

torch = pytest.importorskip("torch", reason="torch is not installed")

EXAMPLES = Path(__file__).parents[1] / "examples"
# Example -> packages that it needs, and what it says beside the peaks.
LOOPS = {
    "train_with_trainer": (("transformers", "accelerate"), ["equal after resuming"]),
    "train_with_lightning": (
        ("pytorch_lightning",),
        ["saved by Lightning, and equal when loaded"],
    ),
    "train_with_accelerate": (("accelerate",), ["equal after resuming"]),
    "train_lora": (("peft", "transformers"), ["adapter saved, and equal when loaded"]),
    "train_with_everything": ((), ["weights and averages equal", "equal after resuming"]),
    "train_with_ddp": ((), []),
    "train_like_torchtitan": ((), ["equal after resuming"]),
}
# Those that run without the slow tier.
QUICK = ("train_with_ddp",)


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_where(LOOPS, lambda name: name not in QUICK))
def test_the_loop_is_the_plain_one_within_the_budget(name, monkeypatch, capsys, tmp_path):
    """Losses to the bit, checkpoints and all; the peak is below the plain one and the budget."""
    packages, also = LOOPS[name]
    for package in packages:
        pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("SCHEDSIM_CACHE_DIR", str(tmp_path))
    for variable in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    if "accelerate" in packages:  # one process keeps its settings, and refuses others
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
    torch._dynamo.reset()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(name).main()
    finally:
        torch.set_num_threads(threads)
        torch._dynamo.reset()
    said = capsys.readouterr().out
    peaks = re.findall(r"plain: +([\d.]+) MiB.*\nplanned: ([\d.]+) MiB of ([\d.]+) MiB", said)
    assert len(peaks) == (2 if name == "train_with_ddp" else 1)
    for plain, planned, budget in peaks:
        assert float(planned) <= float(budget) < float(plain)
    assert said.count("losses equal: True") == len(peaks)
    for line in also:
        assert f"{line}: True" in said


def test_every_example_of_a_loop_is_run_and_named():
    """Here or beside; and in docs/drop-in.md."""
    scripts = {file.stem for file in EXAMPLES.glob("train_*.py")}
    assert scripts == {*LOOPS, "train_gpt2"}
    page = (EXAMPLES.parent / "docs" / "drop-in.md").read_text()
    assert [name for name in LOOPS if f"examples/{name}.py" not in page] == []

"""The memory campaign's page and its steps, without a CUDA device."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.campaigns.memory_campaign import PerBlock  # noqa: E402
from schedsim.validation.steps import PLAIN, MeasuredSteps  # noqa: E402
from schedsim.validation.targets import capture_target, load_target  # noqa: E402


@pytest.mark.parametrize(
    "text",
    ["model:gpt2,layers=4,hidden=32,heads=2,seq=64,vocab=100", "model:unet,width=4,image=32"],
)
def test_a_checkpoint_every_block_is_the_same_step(text):
    """Gradients but for the order of sums, and less memory.

    Buffers are left out: torch.utils.checkpoint moves the statistics of a batch norm twice.
    """
    target = load_target(text, "cpu")
    captured = capture_target(target, rounds=0)
    steps = MeasuredSteps(target, captured, {})
    steps.modules["blocks"] = PerBlock(target, captured)
    num = 1 + sum(p.requires_grad for p in target.model.parameters())
    for mine, its in zip(steps.results("blocks")[:num], steps.results(PLAIN)[:num], strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-5)
    assert steps.peak("blocks").total_bytes < steps.peak(PLAIN).total_bytes

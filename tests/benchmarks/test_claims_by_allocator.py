"""The loops behind the repeated claims, and the column that their results are."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from claims_by_allocator import LOOPS, Checkpointed, checkpoint_blocks  # noqa: E402
from schedsim.validation.models import build_model  # noqa: E402


@pytest.mark.parametrize(
    ("name", "options", "blocks"),
    [
        ("gpt2", {"layers": 3, "hidden": 16, "heads": 2, "vocab": 20, "seq": 8}, 3),
        ("vit-b16", {"layers": 2, "hidden": 12, "heads": 2, "image": 32, "classes": 5}, 2),
        ("resnet50", {"width": 4, "image": 32, "classes": 5}, 16),
    ],
)
def test_every_block_is_checkpointed_and_gradients_stay(name, options, blocks):
    """The number of blocks by the papers; gradients to the bit, without dropout."""
    built = build_model(name, **options)
    model = built.model.eval()

    def gradients():
        model.zero_grad()
        out = model(*built.inputs)
        (out if built.loss is None else built.loss(out)).backward()
        return [p.grad.clone() for p in model.parameters()]

    wanted = gradients()
    assert checkpoint_blocks(model) == blocks
    assert sum(isinstance(m, Checkpointed) for m in model.modules()) == blocks
    assert all(map(torch.equal, gradients(), wanted))


def test_the_column_is_what_was_measured():
    """Reserved GB of the results, in the row of each claim."""
    lines = (ROOT / "benchmarks/results/claims-by-allocator.jsonl").read_text().splitlines()
    found = {}
    for row in map(json.loads, lines):
        found[row["model"], row["every_block"]] = row["reserved_bytes"] / 1e9
    note = (ROOT / "papers/repeated-claims/README.md").read_text().splitlines()
    for loop in LOOPS:
        before, after = loop.claimed_gb
        start = f"| {loop.name}, {before:g} to {after:g} GB |"
        (row,) = [line for line in note if line.startswith(start)]
        column = f"{found[loop.name, False]:.2f} to {found[loop.name, True]:.2f} GB |"
        assert row.endswith(column)

"""Loops of compiled models: what their steps take, how they are compared, what the table says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import compiled_loops  # noqa: E402
from torch import nn  # noqa: E402
from zoo_models.subject import Subject, mean_square  # noqa: E402


def small():
    torch.manual_seed(0)
    x, number = torch.randn(2, 8, 4), torch.tensor(3.0)
    labels = [{"boxes": torch.randn(6, 4)}, {"boxes": torch.randn(6, 4)}]
    keywords = {"labels": labels, "scale": number, "flag": True}
    return Subject(nn.Linear(4, 3), (x,), loss=mean_square, keywords=keywords)


def test_lengths_are_shares_of_the_second_dimension():
    steps = compiled_loops.batches(small(), "lengths")
    assert [part.inputs[0].shape[1] for [part] in steps] == [8, 6, 4]
    [first], *_ = steps
    assert first.keywords["scale"] == 3.0
    assert first.keywords["flag"] is True


def test_micro_batches_are_samples():
    subject = small()
    [parts] = compiled_loops.batches(subject, "micro-batches")
    assert [part.inputs[0].shape for part in parts] == [(1, 8, 4)] * compiled_loops.NUM_PARTS
    assert torch.equal(parts[1].inputs[0][0], subject.inputs[0][1])


def trained(loop="one batch"):
    subject = small()
    subject.keywords = {}
    made = compiled_loops.Trained(subject, compiled_loops.batches(subject, loop), subject.model)
    made.run()
    return made


@pytest.mark.parametrize("loop", compiled_loops.LOOPS)
def test_a_loop_is_compared_and_measured(loop):
    first, second = trained(loop), trained(loop)
    assert first.off_by(second) == 0.0
    assert first.peak_bytes > first.resident_bytes
    assert len(first.losses) == compiled_loops.NUM_COMPARED * (3 if loop == "lengths" else 1)


def test_a_gradient_that_lacks_or_differs_is_seen():
    first, second = trained(), trained()
    second.gradients[1]["weight"] += 0.5 * second.gradients[1]["weight"].abs().max()
    assert first.off_by(second) == pytest.approx(0.5, rel=1e-3)
    del second.gradients[1]["weight"]
    assert first.off_by(second) == pytest.approx(1.0)


def row(share, **more):
    about = {"model": "m", "loop": "one batch", "way": "backend", "share": share, "status": "ok"}
    return about | {"asked_bytes": 900, "budget_bytes": 900, "peak_bytes": 900, "off_by": 0} | more


def test_the_table_says_what_fails():
    rows = [row(1.0), row(0.6, peak_bytes=901), row(0.45, budget_bytes=1000, off_by=0.1)]
    text = compiled_loops.report([*rows, row(0.3, status="refused")])
    assert "at most the budget in 2 of 3; 1 of these" in text
    assert "within rounding in 2 of 3" in text
    assert "**over** 0.9 within 0.9" in text
    assert "0.9 within 1.0, the least; **off by 1e-01**" in text
    assert "| refused |" in text

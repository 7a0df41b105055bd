"""A few of the zoo's models; all of them are tried by ``benchmarks/zoo.py``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import zoo_models  # noqa: E402, F401
from schedsim.validation.measure import AllocatorMeter  # noqa: E402
from zoo_models.subject import ENTRIES, Entry  # noqa: E402
from zoo_models.trial import (  # noqa: E402
    DIFFERENT,
    EQUAL,
    OVER,
    REFUSED,
    Attempt,
    KeptTensor,
    Trace,
    plain_loop,
    rows,
)
from zoo_models.zoo_page import write_page  # noqa: E402

SAMPLE = (
    ("batch-norm-transposed", "whole step", 0.6),
    ("wgan-penalty", "whole step", 0.6),
    ("parameter-hooks", "by blocks", 0.6),
    ("arc-face", "by blocks", 0.45),
    ("gradient-reversal", "in place", 0.8),
)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "way", "share"), SAMPLE)
def test_a_sample_trains_as_the_plain_model_does(name, way, share):
    """To the bit, and within the budget."""
    [row] = rows(ENTRIES[name], way, (share,))
    assert row["result"] == EQUAL, row
    assert row["peak_bytes"] <= row["budget_bytes"]


def test_the_zoo_is_large_and_mostly_not_ours():
    entries = ENTRIES.values()
    assert len(entries) >= 80
    assert sum(entry.source != "here" for entry in entries) > len(entries) / 2
    assert len({entry.family for entry in entries}) >= 15


def test_what_differs_is_seen(monkeypatch):
    """Another number in one gradient, and a budget that is passed: the rows say so."""
    entry = ENTRIES["parameter-hooks"]
    spoilt = plain_loop(entry)
    spoilt.tensors[1][1].entries[0, 0] += 1.0
    found = {"budget_bytes": spoilt.peak_bytes, "level": "op"}
    monkeypatch.setattr(Attempt, "within", lambda self, budget: (spoilt, dict(found)))
    results = [row["result"] for row in rows(entry, "whole step", (0.8,))]
    assert results == [DIFFERENT]
    same = plain_loop(entry)
    found["budget_bytes"] = same.peak_bytes - 1
    monkeypatch.setattr(Attempt, "within", lambda self, budget: (same, dict(found)))
    assert [row["result"] for row in rows(entry, "whole step", (0.8,))] == [OVER]


def test_traces_are_compared_to_the_bit():
    one, two = Trace(), Trace()
    one.note("loss", torch.tensor([1.0, float("nan")]))
    two.note("loss", torch.tensor([1.0, float("nan")]))
    assert one.difference(two) is None
    two.tensors[0][1].entries[0] = 1.0 + 1e-7
    assert "loss by" in one.difference(two)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([1.5, -2.0]).bfloat16(),
        torch.tensor([1 + 2j, 3 - 1j]).conj(),
        torch.tensor(True),
        torch.zeros(0, 3),
        torch.rand(3, 4).t(),
    ],
)
def test_copies_are_kept_to_the_bit_outside_of_torch(tensor):
    """Of any format and layout."""
    [reading] = AllocatorMeter().read(lambda: KeptTensor.of(tensor))
    kept = reading.result.tensor
    assert torch.equal(kept, tensor)
    assert kept.dtype is tensor.dtype
    assert reading.peak_bytes == 0 or tensor.is_conj()


def test_places_and_entries_of_sparse_gradients_are_compared():
    one, two = Trace(), Trace()
    for trace, entry in ((one, 1.0), (two, 2.0)):
        trace.note("table", torch.sparse_coo_tensor([[1]], [entry], (3,), check_invariants=True))
    assert "table by" in one.difference(two)
    assert one.difference(one) is None


def test_the_page_counts_what_the_rows_say(tmp_path):
    common = {"model": "llama", "family": "decoder", "source": "transformers"}
    rows_of_one = [
        {**common, "way": "whole step", "budget": "80%", "result": EQUAL, "says": ""}
        | {"peak_bytes": 50, "plain_peak_bytes": 100},
        {**common, "way": "in place", "budget": "60%", "result": REFUSED, "says": "a line"},
        {**common, "way": "by blocks", "budget": "80%", "result": REFUSED}
        | {"says": "Net: no line of repeated blocks was found"},
    ]
    write_page(rows_of_one, tmp_path / "zoo.md", 7)
    text = (tmp_path / "zoo.md").read_text()
    assert "1 whole step, 1 by blocks, 1 in place, of 7 models" in text
    assert "| all | 2 | 1 (50.0%) |" in text
    assert "| llama | decoder | transformers | = | - | no | 50% |" in text
    assert "| llama | in place | 60% | refused | a line |" in text


def test_models_are_the_same_each_time():
    entry: Entry = ENTRIES["vae"]
    one, two = entry.make(), entry.make()
    pairs = zip(one.model.parameters(), two.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert torch.equal(one.inputs[0], two.inputs[0])

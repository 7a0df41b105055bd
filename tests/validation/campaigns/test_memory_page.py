"""The page of the memory campaign, written from its file."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.campaigns.memory_page import write_memory_page  # noqa: E402


def test_the_page(tmp_path):
    """Its sums, by hand: one of two predictions is near, one of two plans fits."""
    row = {"model": "M", "target": "model:m", "method": "plain", "requested_bytes": 10**9}
    near = {**row, "method": "plan for 10 %", "predicted_bytes": 10**9, "budget_bytes": 10**9}
    near |= {"fits_budget": True, "overhead": 0.25, "reserved_bytes": 10**9}
    near |= {"predicted_reserved_bytes": 10**9, "reserved_within_bytes": 10**9}
    far = {**near, "requested_bytes": 10**9 + 2 * 10**6, "fits_budget": False}
    far |= {"budget_bytes": 2 * 10**9, "predicted_reserved_bytes": 9 * 10**8}
    path = tmp_path / "memory.jsonl"
    rows = [{"environment": {"device": "cuda", "dry": "no times"}}, row, near, far]
    rows.append({"model": "N", "failed": "too large"})
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    write_memory_page(path)
    text = path.with_suffix(".md").read_text()
    assert "**no times**" in text
    assert "of the prediction: 1 of 2" in text
    assert "1 % or 8 MiB of the prediction: 1 of 2, to the byte 1" in text
    assert "more than their budget: 0 of 2" in text
    assert "97 % of their budget: 1 of 2; of the others, 0 have" in text
    assert "+11.111 %" in text
    assert "their budget alone: 1 of 2" in text
    assert "+25.0 %" in text
    assert "Not run: too large" in text


def test_why_a_plan_leaves_memory_and_the_largest_batches(tmp_path):
    """A proof where the next faster schedule requests too much; batches beside one more."""
    plan = {"model": "M", "target": "model:m", "method": "plan", "requested_bytes": 10**9}
    plan |= {"budget_bytes": 2 * 10**9, "reserved_bytes": 10**9, "predicted_bytes": 10**9}
    plan["reserved_within_bytes"] = 10**9
    proven = {**plan, "faster": {"requested_bytes": 3 * 10**9, "reserved_bytes": None}}
    found = {**plan, "faster": {"requested_bytes": 10**9, "reserved_bytes": 4 * 10**9}}
    some = {"requested_bytes": 10**9, "reserved_bytes": 4 * 10**9, "repeats": 12}
    of_graph = {**plan, "faster": some}
    batch = {"maximize": "G", "target": "model:g", "budget_bytes": 10**9, "largest": 7}
    batch |= {"fits_reserved_bytes": 9 * 10**8, "fits_predicted_reserved_bytes": 9 * 10**8}
    batch |= {"beyond_predicted_reserved_bytes": 2 * 10**9, "beyond_out_of_memory": "no"}
    wrong = {key: value for key, value in batch.items() if key != "beyond_out_of_memory"}
    path = tmp_path / "memory.jsonl"
    rows = [{"environment": {"device": "cuda"}}, proven, found, of_graph, batch]
    rows.append({**wrong, "maximize": "H"})
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    write_memory_page(path)
    text = path.with_suffix(".md").read_text()
    assert "0 of 3; of the others, 3 have no faster plan" in text
    assert "schedule requests 3.00 GB, which is proven" in text
    assert "the least that a faster one reserves is 4.00 GB" in text
    assert "without any one of its 12 repeated runs it would reserve at least 4.00 GB" in text
    assert "that fit: 2 of 2; with one sample more memory runs out: 1 of 2" in text
    assert "| G | `model:g` | 1.00 GB | 7 | 900.0 MB | 900.0 MB | 2.00 GB | out of memory |" in text
    assert "| 2.00 GB | runs |" in text

"""The page of the memory campaign, written from its file."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.memory_page import write_memory_page  # noqa: E402


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
    assert "97 % of their budget: 1 of 2" in text
    assert "+11.111 %" in text
    assert "their budget alone: 1 of 2" in text
    assert "+25.0 %" in text
    assert "Not run: too large" in text

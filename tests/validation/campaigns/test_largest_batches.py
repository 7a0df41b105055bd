"""The largest batch within a budget fits on the device, and one more does not."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.campaigns import largest_batches  # noqa: E402
from schedsim.validation.campaigns.largest_batches import BATCH_CASES, BatchCase, run_batch_case  # noqa: E402
from schedsim.validation.dry_cuda import has_times, has_values  # noqa: E402

import schedsim  # noqa: E402
from schedsim.files.document import to_dict  # noqa: E402

CUDA = torch.device("cuda")


def test_budgets_and_names():
    assert len({case.name for case in BATCH_CASES}) == len(BATCH_CASES)
    assert all("batch=" not in case.target for case in BATCH_CASES)


@pytest.mark.slow
def test_a_sample_more_that_no_block_of_has_room_is_out_of_memory(monkeypatch):
    """Its capture takes the whole device, which is more than the budget."""
    case = BatchCase("small", "model:gpt2", "1GB")
    ones = [1] * 4
    four = schedsim.Chain.from_arrays(
        "four", 1, forward_s=ones, backward_s=ones, output_bytes=ones, saved_bytes=ones
    )
    plan = schedsim.plan(four, 8)
    asked = {"largest": {"size": 3}, "proof": "exact", "checked_to": 4, "plan": to_dict(plan)}

    def run(case, batch, device, plan):
        if batch > 3:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return {"reserved_bytes": 10}

    monkeypatch.setattr(largest_batches, "_run", run)
    row = run_batch_case(case, "cpu", lambda case, device: asked)
    assert row["fits_reserved_bytes"] == 10
    assert row["beyond_planned"] == largest_batches.UNCAPTURED
    assert row["beyond_out_of_memory"] == "CUDA out of memory."


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.skipif(
    has_values(CUDA) and not has_times(CUDA), reason="the command's own process has no values"
)
def test_the_largest_batch_fits_and_one_more_does_not():
    """By the command, in a process of its own."""
    case = BatchCase("GPT-2", "model:gpt2,layers=2,hidden=256,heads=4,seq=256,vocab=2000", "150MB")
    row = run_batch_case(case, "cuda")
    assert row["fits_reserved_bytes"] <= row["budget_bytes"]
    assert "fits_out_of_memory" not in row
    assert row["beyond_planned"] == "infeasible"
    assert "beyond_out_of_memory" in row

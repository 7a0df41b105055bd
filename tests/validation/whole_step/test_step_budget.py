"""A budget as people give it, of a model's step."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.whole_step import step_budget  # noqa: E402
from schedsim.validation.whole_step.step_budget import budget_in_bytes  # noqa: E402

from schedsim.errors import SchedsimError  # noqa: E402


@pytest.mark.parametrize(
    ("budget", "want"),
    [
        (7, 7),
        ("24GiB", 24 * 2**30),
        (" 80% ", 800),
        ("0.25%", 2),
        ("1000%", 10_000),
        ("8GB", 8 * 10**9),
    ],
)
def test_bytes_texts_and_shares(budget, want):
    """Shares are of store-all, rounded down."""
    assert budget_in_bytes(budget, 1000, []) == want


@pytest.mark.parametrize(
    "budget", [0, -3, True, 2.5, None, "%", "much%", "0%", "-1%", "1001%", "nan%"]
)
def test_what_says_no_number_is_refused(budget):
    """With the value and what may be given."""
    with pytest.raises(SchedsimError, match="is not understood") as caught:
        budget_in_bytes(budget, 1000, [])
    assert repr(budget) in caught.value.message
    assert "80%" in caught.value.hint


def test_a_device_that_is_not_here_is_refused(monkeypatch):
    """In words, not in CUDA's."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SchedsimError, match="'cuda:0': there is no CUDA device here") as caught:
        budget_in_bytes("cuda:0", 1000, [])
    assert "24GiB" in caught.value.hint


class OnDevice:
    """A tensor of 100 bytes on a device."""

    def __init__(self, name: str) -> None:
        self.device = torch.device(name)


def test_what_is_free_on_a_device_with_what_the_step_counts(monkeypatch):
    """Free and cached bytes less a headroom; resident tensors of that device come back on top."""
    cuda = {
        "is_available": lambda: True,
        "mem_get_info": lambda device: (10_000, 50_000),
        "current_device": lambda: 0,
        "memory_reserved": lambda device: 3_000,
        "memory_allocated": lambda device: 1_000,
    }
    for name, function in cuda.items():
        monkeypatch.setattr(torch.cuda, name, function)
    monkeypatch.setattr(step_budget, "storage_bytes", lambda tensors: 100 * len(tensors))
    resident = [OnDevice("cuda:0"), OnDevice("cuda:1"), OnDevice("cpu"), OnDevice("cuda:0")]
    free = int(12_000 * (1 - step_budget.HEADROOM))
    assert budget_in_bytes("cuda:0", 1, resident) == free + 200
    assert budget_in_bytes("cuda", 1, resident) == free + 200
    assert budget_in_bytes("cuda:1", 1, resident) == free + 100


def test_a_device_that_does_not_answer_is_named(monkeypatch):
    """The first line of what CUDA says."""

    def failing(device):
        raise RuntimeError("invalid device ordinal\nand much more")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", failing)
    with pytest.raises(SchedsimError, match=r"budget 'cuda:9': invalid device ordinal(\nhint|$)"):
        budget_in_bytes("cuda:9", 1, [])

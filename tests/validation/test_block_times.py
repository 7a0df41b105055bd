"""Kept times say how old they are, and those of a busy machine are not believed."""

from __future__ import annotations

import json
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.block_level import capture_chain  # noqa: E402
from schedsim.validation.block_times import MOST_SPREAD, BlockTimes  # noqa: E402
from schedsim.validation.models import build_model  # noqa: E402


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """A cache folder of the test's own."""
    monkeypatch.setenv("SCHEDSIM_CACHE_DIR", str(tmp_path))


def captured(rounds: int = 2):
    """A small model, captured with kept times where there are any."""
    model, inputs, loss = build_model("mlp", layers=3, hidden=32, batch=64)
    times = BlockTimes("cpu")
    found = capture_chain(model, inputs, loss, rounds=rounds, known_times=times.find)
    return times, found


def test_kept_times_are_named_with_their_age(monkeypatch):
    """The second capture has the times of the first, to the bit, and says so."""
    # However busy the machine is by now.
    monkeypatch.setattr(sys.modules[capture_chain.__module__], "step_seconds", lambda *_: 1e9)
    times, first = captured()
    assert first.times_spread is not None
    times.keep(first.workload, 0.25)
    _, second = captured()
    assert second.workload == first.workload
    assert second.times_spread is None
    assert any("ago, spread 25 %" in note for note in second.notes)


def test_times_of_a_busy_machine_are_measured_again():
    """Kept times a thousand times too long are refused, in words."""
    times, first = captured()
    times.keep(first.workload, 0.0)
    document = json.loads(times.cache.path.read_text())
    for entry in document["entries"].values():
        entry["times_s"] = {op: 1000 * seconds + 1 for op, seconds in entry["times_s"].items()}
    times.cache.path.write_text(json.dumps(document))
    _, second = captured()
    assert any("measured again" in note for note in second.notes)
    assert second.workload.store_all_s < 3
    assert second.times_spread is not None


def test_times_that_lie_far_apart_are_not_kept():
    """Nor is anything where nothing was measured."""
    times, first = captured()
    for spread in (MOST_SPREAD + 0.1, None):
        times.keep(first.workload, spread)
        assert BlockTimes("cpu").find(_untimed(first.workload)) is None
    times.keep(first.workload, MOST_SPREAD)
    assert BlockTimes("cpu").find(_untimed(first.workload)) is not None


def test_entries_of_other_versions_are_measured_again():
    """A table of times without an age is no entry, nor is one whose fields hold something else."""
    times, first = captured()
    times.keep(first.workload, 0.0)
    key, entry = next(iter(times.cache.entries.items()))
    untimed = _untimed(first.workload)
    assert times.find(untimed) is not None
    fewer = {name: value for name, value in entry.items() if name != "spread"}
    foreign = [entry["times_s"], fewer, [1, 2], "times", None]
    foreign += [entry | {"spread": "7 %"}, entry | {"measured_at_s": None}]
    foreign += [entry | {"times_s": dict.fromkeys(entry["times_s"], bad)} for bad in ("1", -1, [])]
    for other in foreign:
        times.cache.entries[key] = other
        assert times.find(untimed) is None, other


def _untimed(workload):
    from dataclasses import replace

    stages = tuple(replace(stage, forward_s=0.0, backward_s=0.0) for stage in workload.stages)
    return replace(workload, stages=stages, loss_s=0.0)

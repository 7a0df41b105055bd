"""Bytes of blocks that communicate, where a thread may hold a buffer longer than it need."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from tiers import slow_where

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.block_level import capture_chain, chain_capture  # noqa: E402
from schedsim.validation.measure import Reading, StorageMeter, allocator_record  # noqa: E402
from schedsim.validation.whole_step.captured_step import bare  # noqa: E402
from torch import nn  # noqa: E402

from schedsim.files.workload_files import workload_hash  # noqa: E402


class LateMeter(StorageMeter):
    """Counts `late_bytes` more than there are at three in ten peaks and ends, by lot."""

    def __init__(self, late_bytes):
        self.late_bytes, self.lots = late_bytes, random.Random(0)

    def read(self, *functions):
        """The storage meter's readings, with what is late."""
        return [
            Reading(one.peak_bytes + self.late(), one.end_bytes + self.late(), one.result)
            for one in super().read(*functions)
        ]

    def late(self):
        """Bytes held too long."""
        return self.late_bytes if self.lots.random() < 0.3 else 0


class TwoRanks:
    """Ranks that are asked as a group is, the other of which is always content."""

    alone, members, is_first, bound = False, (0, 1), True, True

    def all(self, flag, what=""):
        """A reading of both."""
        return bool(flag)


def a_step():
    """Blocks whose forward takes more than it keeps, and inputs."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(16, 32), nn.Softmax(-1), nn.Linear(32, 16)) for _ in range(3))
    )
    return model, (torch.randn(8, 16), torch.randn(8, 16))


def captured(monkeypatch, meter):
    """The chain of that step, with its bytes read by `meter` on two ranks."""

    monkeypatch.setattr(chain_capture, "get_meter", lambda name, device: meter)
    model, inputs = a_step()
    return capture_chain(model, inputs, nn.functional.mse_loss, rounds=0, ranks=TwoRanks()).chain


@pytest.mark.parametrize("late_bytes", slow_where([64, 1088, 10**6], lambda size: size != 1088))
def test_what_is_held_too_long_now_and_then_is_in_no_size(monkeypatch, late_bytes):
    """Sizes and workspaces are those of readings in which nothing is late."""
    exact = captured(monkeypatch, StorageMeter())
    assert captured(monkeypatch, LateMeter(late_bytes)) == exact


def test_workspaces_are_no_part_of_what_a_plan_belongs_to():
    """The one of a forward that keeps its bundle included, in a chain and in its graph."""
    model, inputs = a_step()
    chain = capture_chain(model, inputs, nn.functional.mse_loss, rounds=0).chain
    other = replace(
        chain,
        stages=tuple(
            replace(stage, saving_workspace_bytes=(stage.saving_workspace_bytes or 0) + 4321)
            for stage in chain.stages
        ),
    )
    assert workload_hash(other) != workload_hash(chain)
    for one, two in ((chain, other), (chain.graph, other.graph)):
        assert workload_hash(bare(one, 0)) == workload_hash(bare(two, 0))


def test_a_block_of_an_earlier_record_is_not_released_in_the_next():
    """4000 bytes are let go; the 40 that are made and kept are all there is."""
    held = []
    allocator_record(lambda: held.append(torch.zeros(1000)))

    def work():
        held.clear()
        return torch.zeros(10)

    [(changes, _)] = allocator_record(work)
    assert changes == [40]

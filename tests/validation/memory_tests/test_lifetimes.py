"""Who made each storage of a step, who reads it, and from when to when it lives."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from schedsim.validation.memory_tests.lifetimes import LifetimeTracker
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x):
        return self.block(x).exp().exp().sum()


def tracked():
    """A real step of `Net`, and the moment at which its backward begins."""
    net, x = Net(), torch.zeros(3, 8)
    tracker = LifetimeTracker()
    with tracker, tracker.following(net):
        for name, parameter in net.named_parameters():
            tracker.hold(parameter, name, "static")
        tracker.hold(x, "x", "input")
        loss = net(x)
        end, tracker.in_backward = tracker.now(), True
        loss.backward()
    return tracker, end


def test_names_are_those_of_modules_and_ops_and_are_numbered():
    """The second of equal ones is number two; backward ops are named after their forward ones."""
    tracker, _ = tracked()
    names = [life.name for life in tracker.lives]
    assert names[:5] == ["block.0.weight", "block.0.bias", "block.2.weight", "block.2.bias", "x"]
    assert {"block.0.addmm", "block.1.relu", "block.2.addmm", "exp", "exp#2", "sum"} <= set(names)
    assert "grad.block.1.relu" in names
    assert len(names) == len(set(names))


def test_lives_add_up_at_every_moment():
    """The bytes of what is alive at the peak are the peak, and no moment has more."""
    tracker, _ = tracked()
    sums = [
        sum(life.size_bytes for life in tracker.alive(moment))
        for moment in range(tracker.now() + 1)
    ]
    assert sums[tracker.peak_moment] == tracker.peak.total_bytes == max(sums)
    assert tracker.peak_op.startswith("grad.")


def test_what_is_kept_has_its_first_reader():
    """The output of ReLU is read by its own backward after the next layer's; exp's by exp's."""
    tracker, end = tracked()
    kept = {life.name: life.reader for life in tracker.alive(end)}
    assert kept["block.1.relu"] == "grad.block.2.addmm"
    assert kept["exp"] == kept["exp#2"] == "grad.exp"
    assert "block.0.addmm" not in kept  # ReLU needs its output alone
    assert {kept[name] for name in ("block.0.bias", "block.2.bias")} == {""}

"""The schedule that replays every block."""

from __future__ import annotations

from schedsim import Schedule


def recompute_everything(chain):
    """Every stage input stored, every stage replayed."""
    num = chain.num_stages
    names = [f"F{i}" for i in range(num)] + ["loss"]
    for i in range(num - 1, -1, -1):
        names += [f"F{i}", f"B{i}"]
    return Schedule.from_names(names)

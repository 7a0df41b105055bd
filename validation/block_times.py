"""Measured times of blocks, kept between runs, so that a model is always the same workload."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import torch

from schedsim.dataflow.chain import Chain
from schedsim.dataflow.graph import Graph
from schedsim.files.workload_files import workload_hash

from .costs.cache import ProfileCache, cached_note, is_measure
from .environment import environment

MOST_SPREAD = 1.0
"""Larger spreads of rounds, as a share of their median, come from a machine at other work."""


class BlockTimes:
    """Times of blocks, by the sizes of a workload and the environment of the measurement.

    Parameters
    ----------
    device
        Device where the times were, or will be, measured.
    read
        Whether to look for kept times; otherwise everything is measured again, and kept.
    num_ranks
        Ranks over which the parameters are sharded: the times include their communication.
    """

    def __init__(
        self, device: str | torch.device, *, read: bool = True, num_ranks: int = 1
    ) -> None:
        several = {"ranks": str(num_ranks)} if num_ranks > 1 else {}
        self.cache = ProfileCache({"of": "blocks", **environment(device), **several})
        self.read = read

    def find(self, untimed: Chain | Graph) -> tuple[Chain | Graph, str] | None:
        """`untimed` with its times, and their age in words; ``None`` where no times are known."""
        entry = self.cache.entries.get(workload_hash(untimed)) if self.read else None
        if not isinstance(entry, dict):
            return None
        held: list[Any] = [entry.get(name) for name in ("times_s", "measured_at_s", "spread")]
        known, measured_at_s, spread = held
        # An entry of an unknown form counts as none: the blocks are measured again.
        if not isinstance(known, dict) or set(known) != set(untimed.op_names):
            return None
        if not all(map(is_measure, (*known.values(), measured_at_s, spread))):
            return None
        note = cached_note("times", max(0.0, time.time() - measured_at_s), spread)
        if isinstance(untimed, Chain):
            stages = tuple(
                replace(stage, forward_s=known[f"F{i}"], backward_s=known[f"B{i}"])
                for i, stage in enumerate(untimed.stages)
            )
            return replace(untimed, stages=stages, loss_s=known["loss"]), note
        ops = tuple(replace(op, time_s=known[op.name]) for op in untimed.ops)
        return replace(untimed, ops=ops), note

    def keep(self, timed: Chain | Graph, spread: float | None) -> None:
        """Keep the times of `timed`, unless the machine was busy.

        Parameters
        ----------
        spread
            Spread of the rounds, as a share of their median; ``None`` where nothing was measured.
        """
        if spread is None or spread > MOST_SPREAD:
            return
        graph = timed.graph
        if isinstance(timed, Chain):
            bare = tuple(replace(s, forward_s=0.0, backward_s=0.0) for s in timed.stages)
            untimed: Chain | Graph = replace(timed, stages=bare, loss_s=0.0)
        else:
            untimed = replace(timed, ops=tuple(replace(op, time_s=0.0) for op in timed.ops))
        times = {op.name: op.time_s for op in graph.ops}
        entry = {"times_s": times, "measured_at_s": time.time(), "spread": spread}
        self.cache.entries[workload_hash(untimed)] = entry
        self.cache.save()

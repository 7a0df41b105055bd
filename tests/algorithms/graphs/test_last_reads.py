"""Which run reads an instance last, beside a walk along the schedule."""

from __future__ import annotations

import numpy as np
import pytest
from chains import random_graph
from schedsim.algorithms.graphs._last_reads import (
    first_out,
    is_unread,
    last_read,
    next_read,
    run_before,
)
from schedsim.algorithms.graphs._memory_profile import make_profile
from schedsim.algorithms.graphs._packed_graph import NTH, PRODUCER, READS, WRITES, pack_graph
from schedsim.algorithms.graphs._profile_record import NUM_SLOTS, OP, SLOT


@pytest.mark.parametrize("seed", range(5))
def test_reads_are_found_as_by_a_walk(seed):
    """The last and the next reader of a tensor, and the run that made what is read."""
    graph = random_graph(np.random.default_rng(seed), 10)
    packed = pack_graph(graph.arrays)
    profile = make_profile(packed, np.arange(10))
    last_slot = int(profile.counts[NUM_SLOTS])
    runs = [run for run in profile.slot_run.tolist() if run >= 0]
    for run in runs:
        op, slot = profile.run[run, OP], int(profile.run[run, SLOT])
        assert run_before(profile, op, slot) == -1
        assert run_before(profile, op, slot + 1) == run
        read = False
        for w in range(packed.op[op, WRITES], packed.op[op + 1, WRITES]):
            tensor = packed.flat[w]
            assert packed.tensor[tensor, PRODUCER] == op
            reads = [r for r in runs if tensor in reads_of(packed, profile.run[r, OP])]
            later = [r for r in reads if profile.run[r, SLOT] > slot]
            found = last_read(packed, profile, tensor, slot, last_slot)
            assert found == (later[-1] if later else -1)
            assert next_read(packed, profile, tensor, slot) == (later[0] if later else -1)
            end = profile.end_of[first_out(profile, run) + packed.tensor[tensor, NTH]]
            assert end == (later[-1] if later else run)
            read |= bool(later)
        assert is_unread(packed, profile, run) == (not read)


def reads_of(packed, op: int) -> list[int]:
    """Tensors that an op reads."""
    return packed.flat[packed.op[op, READS] : packed.op[op + 1, READS]].tolist()

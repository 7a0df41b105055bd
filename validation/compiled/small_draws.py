"""Random numbers that take less room than what is needed to draw them again."""

from __future__ import annotations

import torch

from ..capture.program import Program


def keep_small_draws(program: Program) -> None:
    """Let ops run once that draw from the CPU's generator no more than the generator's state takes.

    To draw again, the state from before the first draw is kept for as long as the numbers would be.
    On other devices that state takes no memory of the allocator's. O(ops).
    """
    state_bytes = torch.get_rng_state().numel()
    for call in program.calls:
        if not call.random or call.once:
            continue
        values = [program.values[v] for v in call.outputs if v >= 0]
        storages = {value.storage for value in values}
        most = sum(program.storages[storage].size_bytes for storage in storages)
        on_cpu = all(value.device.type == "cpu" for value in values)
        call.once = on_cpu and most <= state_bytes

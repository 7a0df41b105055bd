"""Code for PyTorch: torch.utils.checkpoint around segments of a line of blocks."""

from __future__ import annotations

from ..dataflow.chain import Chain
from ..plans.plan import Plan
from ..simulation.simulator import Simulation
from .choice import Choice, nearest
from .code import fill
from .segments import flips, segment_choices

SUFFIX = ".py"

_CODE = '''"""Checkpointed segments of a line of blocks. Written by schedsim."""

from torch.utils.checkpoint import checkpoint

WORKLOAD = {name}
BUDGET_BYTES = {budget}
SIMULATED_PEAK_BYTES = {peak}
# Half-open ranges of blocks whose forward runs again when their backward begins.
SEGMENTS = {segments}
NUM_BLOCKS = {num}


def forward(blocks, x):
    """What `blocks`, in a line, make of `x`."""
    if len(blocks) != NUM_BLOCKS:
        raise ValueError(f"{{len(blocks)}} blocks, but the plan was made for {{NUM_BLOCKS}}")

    def run(start, stop, x):
        for i in range(start, stop):
            x = blocks[i](x)
        return x

    at = 0
    for start, stop in SEGMENTS:
        x = run(at, start, x)
        x = checkpoint(run, start, stop, x, use_reentrant=False)
        at = stop
    return run(at, NUM_BLOCKS, x)
'''


def choose(chain: Chain, plan: Plan) -> tuple[Choice, Simulation]:
    """The nearest segments."""
    stages = range(chain.num_stages)
    return nearest(
        chain, plan, segment_choices(chain, plan), lambda choice: flips(chain, choice, stages)
    )


def render(chain: Chain, plan: Plan, choice: Choice, peak_bytes: int) -> str:
    """A module with a function for the line of blocks."""
    return fill(
        _CODE,
        name=chain.name,
        budget=plan.budget_bytes,
        peak=peak_bytes,
        segments=[tuple(segment) for segment in choice.data["segments"]],
        num=chain.num_stages,
    )

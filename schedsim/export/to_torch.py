"""Code for PyTorch: torch.utils.checkpoint around segments of a line of blocks.

The input of a segment may be held in host memory by torch.autograd.graph.save_on_cpu, whose copies
run on the compute stream.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..dataflow.chain import Chain
from ..plans.plan import Plan
from ..simulation.simulator import Simulation
from .choice import Choice, nearest
from .code import fill
from .segments import and_on_host, flips, host_flips, input_of, segment_choices

SUFFIX = ".py"
OFFLOADS = True

_CODE = '''"""Checkpointed segments of a line of blocks. Written by schedsim."""

from contextlib import nullcontext

from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

WORKLOAD = {name}
BUDGET_BYTES = {budget}
SIMULATED_PEAK_BYTES = {peak}
# Half-open ranges of blocks whose forward runs again when their backward begins.
SEGMENTS = {segments}
# Where those segments begin whose input is held in host memory until then.
INPUTS_ON_HOST = {host}
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
        pinned = x.device.type != "cpu"
        held = save_on_cpu(pin_memory=pinned) if start in INPUTS_ON_HOST else nullcontext()
        with held:
            x = checkpoint(run, start, stop, x, use_reentrant=False)
        at = stop
    return run(at, NUM_BLOCKS, x)
'''


def choose(chain: Chain, plan: Plan) -> tuple[Choice, Simulation]:
    """The nearest segments."""
    stages = range(chain.num_stages)
    linked = plan.setting.link is not None

    def neighbours(choice: Choice) -> Iterator[Choice]:
        yield from flips(chain, choice, stages)
        if linked:
            yield from host_flips(chain, choice)

    choices = and_on_host(chain, plan, segment_choices(chain, plan))
    return nearest(chain, plan, choices, neighbours)


def render(chain: Chain, plan: Plan, choice: Choice, peak_bytes: int) -> str:
    """A module with a function for the line of blocks."""
    return fill(
        _CODE,
        name=chain.name,
        budget=plan.budget_bytes,
        peak=peak_bytes,
        segments=[tuple(segment) for segment in choice.data["segments"]],
        host=[start for start, _ in choice.data["segments"] if input_of(start) in choice.host],
        num=chain.num_stages,
    )

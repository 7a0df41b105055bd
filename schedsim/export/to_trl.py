"""Configuration for TRL 1.16: its trainers pass these arguments to the Trainer of transformers.

``activation_offloading`` of its own is another thing: it offloads whatever autograd saves, in the
place of recomputation.
"""

from __future__ import annotations

from ..dataflow.chain import Chain
from ..plans.plan import Plan
from ..simulation.simulator import Simulation
from .choice import Choice
from .segments import nearest_every_nth

SUFFIX = ".yml"
VERSION = "1.16"
OFFLOADS = True


def choose(chain: Chain, plan: Plan) -> tuple[Choice, Simulation]:
    """The nearest n of every n-th layer."""
    return nearest_every_nth(chain, plan, "trl")


def render(chain: Chain, plan: Plan, choice: Choice, peak_bytes: int) -> str:
    """Lines for ``trl sft --config``, and for the other trainers."""
    return trainer_lines(choice)


def trainer_lines(choice: Choice) -> str:
    """YAML of arguments of the Trainer of transformers, by the names that all its releases take."""
    every = choice.data["every"]
    if not every:
        return "gradient_checkpointing: false\n"
    lines = ["gradient_checkpointing: true", "gradient_checkpointing_kwargs:"]
    lines += ["  use_reentrant: false"]
    lines += [f"  every_n_layers: {every}"]
    lines += ["  offload: true"] if choice.host else []
    return "\n".join(lines) + "\n"

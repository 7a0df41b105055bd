"""Configuration for verl 0.9, FSDP engines: all layers or none, and their inputs on the host.

Its Megatron engine takes ``override_transformer_config`` with Megatron's own names.
"""

from __future__ import annotations

from ..dataflow.chain import Chain
from ..plans.plan import Plan
from ..simulation.simulator import Simulation
from .choice import Choice
from .segments import nearest_every_nth

SUFFIX = ".yml"
VERSION = "0.9"
OFFLOADS = True


def choose(chain: Chain, plan: Plan) -> tuple[Choice, Simulation]:
    """All layers, or none."""
    # Its copies keep two layers' worth on the device: that being made, and that being read.
    return nearest_every_nth(chain, plan, "verl", most=1, kept=2)


def render(chain: Chain, plan: Plan, choice: Choice, peak_bytes: int) -> str:
    """Fields of the model's configuration."""
    checkpointed, offloaded = bool(choice.data["every"]), bool(choice.host)
    return (
        "actor_rollout_ref:\n  model:\n"
        f"    enable_gradient_checkpointing: {str(checkpointed).lower()}\n"
        f"    enable_activation_offload: {str(offloaded).lower()}\n"
    )

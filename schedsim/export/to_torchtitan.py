"""Code for torchtitan 0.3: an activation-checkpointing policy of chosen layers."""

from __future__ import annotations

from ..dataflow.chain import Chain
from ..plans.plan import Plan
from ..simulation.simulator import Simulation
from . import older_torchtitan
from .choice import Choice
from .code import fill
from .segments import chosen_layers, layer_range, nearest_layers

SUFFIX = ".py"
VERSION = "0.3"
OLDER = {"0.2": older_torchtitan}

_CODE = '''"""Activation checkpointing of chosen layers, for torchtitan 0.3. Written by schedsim.

In a config_registry.py: activation_checkpoint=PlannedAC.Config()
"""

from dataclasses import dataclass

from torchtitan.distributed.activation_checkpoint import FullAC

WORKLOAD = {name}
# Layers, by their number in the whole model, whose forward runs again in the backward.
CHECKPOINTED = {layers}
NUM_LAYERS = {num}


class PlannedAC(FullAC):
    """Checkpoint the layers above, and no others; a pipeline stage those of its own."""

    @dataclass(kw_only=True, slots=True)
    class Config(FullAC.Config):
        pass

    def _wrap_block(self, module, *, base_fqn=None):
        number = int(base_fqn.rpartition(".")[2])
        if number >= NUM_LAYERS:
            raise ValueError(f"layer {{number}}, but the plan was made for {{NUM_LAYERS}}")
        if number not in CHECKPOINTED:
            return module
        return super()._wrap_block(module, base_fqn=base_fqn)
'''


def choose(chain: Chain, plan: Plan) -> tuple[Choice, Simulation]:
    """The nearest set of layers."""
    return nearest_layers(chain, plan, "torchtitan")


def render(chain: Chain, plan: Plan, choice: Choice, peak_bytes: int) -> str:
    """A module with a policy."""
    return policy(chain.name, chosen_layers(chain, choice), len(layer_range(chain)))


def policy(name: str, layers: list[int], num: int) -> str:
    """The policy that checkpoints `layers` of `num`."""
    return fill(_CODE, name=name, layers=layers, num=num)

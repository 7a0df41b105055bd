"""Code for torchtitan 0.3: an activation-checkpointing policy of chosen layers."""

from __future__ import annotations

from ..dataflow.chain import Chain
from ..plans.plan import Plan
from ..simulation.simulator import Simulation
from . import older_torchtitan
from .choice import Choice, nearest
from .code import fill
from .segments import as_choice, flips, layer_range, layers_of, repeated_stages, singles

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
    layers = layers_of(chain, "torchtitan")
    wanted = [i for i in repeated_stages(chain, plan) if i in layers]
    choices = [as_choice(chain, singles(wanted))]
    choices += [as_choice(chain, singles(layers[:k])) for k in range(len(layers) + 1)]
    return nearest(chain, plan, choices, lambda choice: flips(chain, choice, layers))


def render(chain: Chain, plan: Plan, choice: Choice, peak_bytes: int) -> str:
    """A module with a policy."""
    layers = layer_range(chain)
    chosen = {start - layers.start for start, _ in choice.data["segments"]}
    return policy(chain.name, sorted(chosen), len(layers))


def policy(name: str, layers: list[int], num: int) -> str:
    """The policy that checkpoints `layers` of `num`."""
    return fill(_CODE, name=name, layers=layers, num=num)

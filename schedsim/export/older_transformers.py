"""Code for transformers before 5.23: gradient checkpointing of chosen layers."""

from __future__ import annotations

from ..dataflow.chain import Chain
from ..plans.plan import Plan
from ..simulation.simulator import Simulation
from .choice import Choice
from .code import fill
from .segments import chosen_layers, layer_range, nearest_layers

SUFFIX = ".py"

_CODE = '''"""Gradient checkpointing of chosen layers. Written by schedsim.

    model = AutoModelForCausalLM.from_config(config)
    enable(model)
"""

from transformers.modeling_layers import GradientCheckpointingLayer

WORKLOAD = {name}
# Layers, by their place in the model, whose forward runs again in the backward.
CHECKPOINTED = {layers}
NUM_LAYERS = {num}


def enable(model):
    """Checkpoint the layers above, and no others."""
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={{"use_reentrant": False}})
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    if len(layers) != NUM_LAYERS:
        raise ValueError(f"{{len(layers)}} layers, but the plan was made for {{NUM_LAYERS}}")
    for i, layer in enumerate(layers):
        layer.gradient_checkpointing = i in CHECKPOINTED
    return model
'''


def choose(chain: Chain, plan: Plan) -> tuple[Choice, Simulation]:
    """The nearest set of layers."""
    return nearest_layers(chain, plan, "transformers")


def render(chain: Chain, plan: Plan, choice: Choice, peak_bytes: int) -> str:
    """A module with a function for the model."""
    chosen, num = chosen_layers(chain, choice), len(layer_range(chain))
    return fill(_CODE, name=chain.name, layers=chosen, num=num)

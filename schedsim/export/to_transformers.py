"""Code for Hugging Face transformers 5.23: activation checkpointing of chosen layers."""

from __future__ import annotations

from ..dataflow.chain import Chain
from ..plans.plan import Plan
from ..simulation.simulator import Simulation
from . import older_transformers
from .choice import Choice
from .code import fill
from .segments import chosen_layers, layer_range, nearest_layers

SUFFIX = ".py"
VERSION = "5.23"
OLDER = {"4": older_transformers}
OFFLOADS = True

_CODE = '''"""Activation checkpointing of chosen layers, for transformers 5.23. Written by schedsim.

    model = AutoModelForCausalLM.from_config(config)
    enable(model)
"""

import torch
from transformers.modeling_layers import GradientCheckpointingLayer

WORKLOAD = {name}
# Layers, by their place in the model, whose forward runs again in the backward.
CHECKPOINTED = {layers}
NUM_LAYERS = {num}
# Where the layers are those of every_n_layers=, the setting of Trainer is the same:
# activation_checkpointing_kwargs={{"every_n_layers": EVERY, "offload": OFFLOAD}}
EVERY = {every}
# Whether what these layers keep, their inputs, is held in host memory.
OFFLOAD = {offload}


def enable(model):
    """Checkpoint the layers above, and no others."""
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    if len(layers) != NUM_LAYERS:
        raise ValueError(f"{{len(layers)}} layers, but the plan was made for {{NUM_LAYERS}}")
    # Tensors that lie in host memory already are not copied there.
    offload = OFFLOAD and torch.accelerator.is_available()
    model.activation_checkpointing_enable(every_n_layers=EVERY or 1, offload=offload)
    for i, layer in enumerate(layers):
        layer.gradient_checkpointing = i in CHECKPOINTED
    return model
'''


def choose(chain: Chain, plan: Plan) -> tuple[Choice, Simulation]:
    """The nearest set of layers."""
    return nearest_layers(chain, plan, "transformers", offloads=True)


def render(chain: Chain, plan: Plan, choice: Choice, peak_bytes: int) -> str:
    """A module with a function for the model."""
    layers, chosen = layer_range(chain), chosen_layers(chain, choice)
    periods = (n for n in range(1, len(layers) + 1) if chosen == list(range(0, len(layers), n)))
    return fill(
        _CODE,
        name=chain.name,
        layers=chosen,
        num=len(layers),
        every=next(periods, None),
        offload=bool(choice.host),
    )

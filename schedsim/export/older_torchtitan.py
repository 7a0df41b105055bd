"""Configuration of torchtitan before 0.3: no checkpointing, full, or every n-th layer."""

from __future__ import annotations

from ..dataflow.chain import Chain
from ..plans.plan import Plan
from ..simulation.simulator import Simulation
from .choice import Choice, nearest
from .segments import as_choice, layers_of, singles

SUFFIX = ".toml"


def choose(chain: Chain, plan: Plan) -> tuple[Choice, Simulation]:
    """The nearest mode; as in torchtitan, "every n-th layer" starts at the n-th."""
    layers = layers_of(chain, "torchtitan")
    choices = [as_choice(chain, (), mode="none"), as_choice(chain, singles(layers), mode="full")]
    for every in range(2, len(layers) + 1):
        chosen = layers[every - 1 :: every]
        choices.append(as_choice(chain, singles(chosen), mode="selective", every=every))
    return nearest(chain, plan, choices)


def render(chain: Chain, plan: Plan, choice: Choice, peak_bytes: int) -> str:
    """The table ``activation_checkpoint``."""
    lines = ["[activation_checkpoint]", f'mode = "{choice.data["mode"]}"']
    if "every" in choice.data:
        lines.append(f'selective_ac_option = "{choice.data["every"]}"  # every n-th layer')
    return "\n".join(lines) + "\n"

"""Configuration for axolotl 0.21, which passes it to the Trainer of its pinned transformers."""

from __future__ import annotations

from ..dataflow.chain import Chain
from ..plans.plan import Plan
from ..simulation.simulator import Simulation
from .choice import Choice
from .segments import nearest_every_nth
from .to_trl import trainer_lines

SUFFIX = ".yml"
VERSION = "0.21"
OFFLOADS = True


def choose(chain: Chain, plan: Plan) -> tuple[Choice, Simulation]:
    """The nearest n of every n-th layer."""
    return nearest_every_nth(chain, plan, "axolotl")


def render(chain: Chain, plan: Plan, choice: Choice, peak_bytes: int) -> str:
    """Lines for its YAML file."""
    return trainer_lines(choice)

"""Configuration for NeMo's Megatron Bridge 0.6: Megatron's settings under the bridge's names."""

from __future__ import annotations

from ..dataflow.chain import Chain
from ..dataflow.graph import Graph
from ..plans.plan import Plan
from ..simulation.simulator import Simulation
from . import to_megatron
from .choice import Choice

SUFFIX = ".yml"
VERSION = "0.6"
OFFLOADS = True


def choose(workload: Chain | Graph, plan: Plan) -> tuple[Choice, Simulation]:
    """The choice for Megatron."""
    return to_megatron.choose(workload, plan)


def render(workload: Chain | Graph, plan: Plan, choice: Choice, peak_bytes: int) -> str:
    """Fields of ``model`` in a recipe's configuration."""
    data = choice.data
    lines = ["model:"]
    if "modules" in data:
        lines += ["  recompute_granularity: selective"] if data["modules"] else []
        lines += [f"  recompute_modules: [{', '.join(data['modules'])}]"] if data["modules"] else []
        if data["host"]:
            lines += ["  fine_grained_activation_offloading: true"]
            lines += [f"  offload_modules: [{', '.join(data['host'])}]"]
    elif data["method"]:
        lines += [
            "  recompute_granularity: full",
            f"  recompute_method: {data['method']}",
            f"  recompute_num_layers: {data['layers']}",
        ]
    if len(lines) == 1:
        lines = ["model:", "  recompute_granularity: null"]
    return "\n".join(lines) + "\n"

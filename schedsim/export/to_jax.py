"""Data for JAX: segments for jax.checkpoint, or the names that its policies save."""

from __future__ import annotations

import json

from ..dataflow.chain import Chain
from ..dataflow.graph import Graph
from ..plans.plan import Plan
from ..simulation.simulator import Simulation
from .choice import Choice, nearest
from .save_sets import INPUT, find_layers, layer_choices, layer_flips
from .segments import and_on_host, flips, segment_choices

SUFFIX = ".json"
OFFLOADS = True


def choose(workload: Chain | Graph, plan: Plan) -> tuple[Choice, Simulation]:
    """The nearest segments of a chain, or names of a graph."""
    if isinstance(workload, Chain):
        chain, stages = workload, range(workload.num_stages)
        return nearest(
            chain,
            plan,
            and_on_host(chain, plan, segment_choices(chain, plan)),
            lambda choice: flips(chain, choice, stages),
        )
    graph, layers = workload, find_layers(workload, "jax")
    linked = plan.setting.link is not None
    return nearest(
        graph,
        plan,
        layer_choices(graph, layers, plan, offloads=True),
        lambda choice: layer_flips(graph, layers, choice, offloads=linked),
    )


def render(workload: Chain | Graph, plan: Plan, choice: Choice, peak_bytes: int) -> str:
    """A JSON document; ``policy`` holds the arguments of ``save_and_offload_only_these_names``."""
    if isinstance(workload, Chain):
        document: dict[str, object] = {
            "apply": "jax.checkpoint around each segment of stages",
            "num_stages": workload.num_stages,
            "segments": [list(segment) for segment in choice.data["segments"]],
            "policy": _policy([], [INPUT] if choice.host else []),
        }
        if choice.host:
            document["apply"] = f"{document['apply']}, checkpoint_name {INPUT} on their inputs"
    else:
        layers = find_layers(workload, "jax")
        document = {
            "apply": "jax.checkpoint around each of the first layers, checkpoint_name on outputs",
            "num_layers": len(layers.names),
            "checkpointed_layers": choice.data["num"],
            "policy": _policy(
                [k for k in layers.kinds if k in choice.data["saved"] - choice.data["host"]],
                [k for k in (INPUT, *layers.kinds) if k in choice.data["host"]],
            ),
        }
    return json.dumps(document, indent=1) + "\n"


def _policy(saved: list[str], offloaded: list[str]) -> dict[str, object]:
    """Arguments of ``save_and_offload_only_these_names``."""
    return {
        "names_which_can_be_saved": saved,
        "names_which_can_be_offloaded": offloaded,
        "offload_src": "device",
        "offload_dst": "pinned_host",
    }

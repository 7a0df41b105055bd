"""Code for PyTorch's selective checkpointing: a policy that says which calls of a layer to save."""

from __future__ import annotations

from ..dataflow.graph import Graph
from ..plans.plan import Plan
from ..simulation.simulator import Simulation
from .choice import Choice, nearest
from .code import fill
from .save_sets import find_layers, layer_choices, layer_flips

SUFFIX = ".py"

# Kinds of formula graphs -> the aten op that runs them; ops of captured models are called by it.
ATEN = {
    "norm": "native_layer_norm",
    "qkv": "addmm",
    "proj": "addmm",
    "up": "addmm",
    "down": "addmm",
    "scores": "bmm",
    "context": "bmm",
    "softmax": "_softmax",
    "softmax_dropout": "native_dropout",
    "attention": "attention",
    "gelu": "gelu",
    "silu_mul": "mul",
    "residual": "add",
}

_CODE = '''"""Selective checkpointing of the layers of a model. Written by schedsim."""

from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

WORKLOAD = {name}
BUDGET_BYTES = {budget}
SIMULATED_PEAK_BYTES = {peak}
NUM_LAYERS = {total}
NUM_CHECKPOINTED = {num}  # the first of the layers
# Op -> for each of its calls in a layer's forward, whether its output is saved.
SAVE = {save}
# Products are one op with a bias and another without; attention has a kernel per device.
SAME = {{"mm": "addmm", "baddbmm": "bmm", "_safe_softmax": "_softmax"}}


def _contexts():
    calls = {{"forward": {{}}, "again": {{}}}}

    def policy(context, op, *args, **kwargs):
        name = op.__name__.split(".")[0]
        name = "attention" if "scaled_dot_product" in name else SAME.get(name, name)
        count = calls["again" if context.is_recompute else "forward"]
        at = count[name] = count.get(name, -1) + 1
        saved = at < len(SAVE.get(name, ())) and SAVE[name][at]
        return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def run_layer(index, layer, *args, **kwargs):
    """Layer number `index` on its inputs."""
    if index >= NUM_CHECKPOINTED:
        return layer(*args, **kwargs)
    return checkpoint(layer, *args, use_reentrant=False, context_fn=_contexts, **kwargs)
'''


def choose(graph: Graph, plan: Plan) -> tuple[Choice, Simulation]:
    """The nearest save set, the same in each checkpointed layer."""
    layers = find_layers(graph, "torch-sac")
    return nearest(
        graph,
        plan,
        layer_choices(graph, layers, plan),
        lambda choice: layer_flips(graph, layers, choice),
    )


def aten_name(kind: str) -> str:
    """The aten op of a kind: the last part of its name, or what runs it."""
    last = kind.split("#")[0].rsplit(".", 1)[-1]
    return ATEN.get(last, last)


def render(graph: Graph, plan: Plan, choice: Choice, peak_bytes: int) -> str:
    """A module with a function that runs a layer."""
    layers = find_layers(graph, "torch-sac")
    save: dict[str, list[bool]] = {}
    for kind in layers.forward[layers.names[0]]:
        save.setdefault(aten_name(kind), []).append(kind in choice.data["saved"])
    return fill(
        _CODE,
        name=graph.name,
        budget=plan.budget_bytes,
        peak=peak_bytes,
        num=choice.data["num"],
        total=len(layers.names),
        save=save,
    )

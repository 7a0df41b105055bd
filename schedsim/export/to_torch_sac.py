"""Code for PyTorch's selective checkpointing: which calls of a layer are saved, and where.

``CheckpointPolicy.MUST_CPU_OFFLOAD`` has no effect: nothing in torch 2.13 copies for it, and an
eager step recomputes such an op. If the host holds tensors, the generated code therefore has two
contexts of its own, which copy, for ``context_fn`` of ``torch.utils.checkpoint``.
"""

from __future__ import annotations

from ..dataflow.graph import Graph
from ..plans.plan import Plan
from ..simulation.simulator import Simulation
from .choice import Choice, nearest
from .code import fill
from .save_sets import INPUT, early_choices, find_layers, layer_choices, layer_flips

SUFFIX = ".py"
OFFLOADS = True

# Kinds of formula graphs -> the aten op that runs them, which also names the ops of captured
# models.
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

# The start of both forms of the code: the facts, and the name by which policies know an op.
_FACTS = """WORKLOAD = {name}
BUDGET_BYTES = {budget}
SIMULATED_PEAK_BYTES = {peak}
# Policies: op -> for each of its calls in a layer's forward, whether or where its output is kept.
SAVE = {save}
# The policy of each layer, by its place above; None: the layer is not checkpointed.
LAYERS = {layers}
# Products are one op with a bias and another without; attention has a kernel per device.
SAME = {{"mm": "addmm", "baddbmm": "bmm", "_safe_softmax": "_softmax"}}


def _policy_name(op):
    name = op.__name__.split(".")[0]
    return "attention" if "scaled_dot_product" in name else SAME.get(name, name)
"""

_CODE = (
    '''"""Selective checkpointing of the layers of a model. Written by schedsim."""

from functools import partial

from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

'''
    + _FACTS
    + '''


def _contexts(save):
    calls = {{"forward": {{}}, "again": {{}}}}

    def policy(context, op, *args, **kwargs):
        name = _policy_name(op)
        count = calls["again" if context.is_recompute else "forward"]
        at = count[name] = count.get(name, -1) + 1
        saved = at < len(save.get(name, ())) and save[name][at]
        return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def run_layer(index, layer, *args, **kwargs):
    """Layer number `index` on its inputs."""
    if LAYERS[index] is None:
        return layer(*args, **kwargs)
    contexts = partial(_contexts, SAVE[LAYERS[index]])
    return checkpoint(layer, *args, use_reentrant=False, context_fn=contexts, **kwargs)
'''
)


_HOST_CODE = (
    '''"""Selective checkpointing, part of it in host memory. Written by schedsim."""

from contextlib import nullcontext
from functools import partial

import torch
from torch.autograd.graph import save_on_cpu
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

INPUTS_ON_HOST = {inputs}
'''
    + _FACTS
    + '''


def to_host(tensor):
    """A copy in pinned host memory; what lies there already is itself."""
    if tensor.device.type == "cpu":
        return tensor.detach()
    held = torch.empty_like(tensor, device="cpu", pin_memory=True)
    return held.copy_(tensor.detach(), non_blocking=True)


class _Calls(TorchDispatchMode):
    def __init__(self, save, kept):
        super().__init__()
        self.save, self.kept, self.calls = save, kept, {{}}

    def place(self, op):
        name = _policy_name(op)
        at = self.calls[name] = self.calls.get(name, -1) + 1
        places = self.save.get(name, ())
        return (name, at), places[at] if at < len(places) else ""


class _Forward(_Calls):
    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        made = op(*args, **(kwargs or {{}}))
        call, place = self.place(op)
        if place:
            tensors = made if isinstance(made, tuple | list) else (made,)
            self.kept[call] = type(made), [
                (to_host(t) if place == "host" else t.detach(), t.device)
                if isinstance(t, torch.Tensor) else (t, None)
                for t in tensors
            ]
        return made


class _Again(_Calls):
    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        call, place = self.place(op)
        if not place:
            return op(*args, **(kwargs or {{}}))
        kind, tensors = self.kept.pop(call)
        back = [t if d is None else t.to(d, non_blocking=True) for t, d in tensors]
        return kind(back) if issubclass(kind, tuple | list) else back[0]


def _contexts(save):
    kept = {{}}
    return _Forward(save, kept), _Again(save, kept)


def run_layer(index, layer, *args, **kwargs):
    """Layer number `index` on its inputs."""
    if LAYERS[index] is None:
        return layer(*args, **kwargs)
    contexts = partial(_contexts, SAVE[LAYERS[index]])
    pinned = any(isinstance(a, torch.Tensor) and a.device.type != "cpu" for a in args)
    with save_on_cpu(pin_memory=pinned) if INPUTS_ON_HOST else nullcontext():
        return checkpoint(layer, *args, use_reentrant=False, context_fn=contexts, **kwargs)
'''
)


def choose(graph: Graph, plan: Plan) -> tuple[Choice, Simulation]:
    """The nearest save sets: one for all checkpointed layers, or a second one for the first few."""
    layers = find_layers(graph, "torch-sac")
    linked = plan.setting.link is not None
    best, _ = nearest(
        graph,
        plan,
        layer_choices(graph, layers, plan, offloads=True),
        lambda choice: layer_flips(graph, layers, choice, offloads=linked),
    )
    return nearest(graph, plan, (best, *early_choices(graph, layers, best)))


def aten_name(kind: str) -> str:
    """The aten op of a kind: the op that runs it, or the last part of the kind's name."""
    last = kind.split("#")[0].rsplit(".", 1)[-1]
    return ATEN.get(last, last)


def render(graph: Graph, plan: Plan, choice: Choice, peak_bytes: int) -> str:
    """A module with a function that runs a layer."""
    layers = find_layers(graph, "torch-sac")
    host, sets = choice.data["host"], choice.data["sets"]
    policies: list[dict[str, list[object]]] = []
    numbers: list[int | None] = []
    for name, saved in zip(layers.names, sets, strict=True):
        if saved is None:
            numbers.append(None)
            continue
        found: dict[str, list[object]] = {}
        for kind in layers.forward[name]:
            place = "host" if kind in host & saved else "device" if kind in saved else ""
            found.setdefault(aten_name(kind), []).append(place if host else kind in saved)
        if found not in policies:
            policies.append(found)
        numbers.append(policies.index(found))
    common = {
        "name": graph.name,
        "budget": plan.budget_bytes,
        "peak": peak_bytes,
        "layers": numbers,
        "save": policies,
    }
    if host:
        return fill(_HOST_CODE, **common, inputs=INPUT in host)
    return fill(_CODE, **common)

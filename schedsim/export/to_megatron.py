"""Arguments of Megatron-LM (megatron-core 0.19): whole layers, or modules of every layer.

Inputs of modules may be held in host memory (``--offload-modules``); the copies overlap with
computation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import combinations

from ..dataflow.chain import Chain
from ..dataflow.graph import Graph
from ..errors import UnsupportedError
from ..plans.plan import Plan
from ..simulation.simulator import Simulation
from .choice import Choice, nearest
from .save_sets import Layers, find_layers, on_demand_schedule
from .segments import as_choice, layers_of, singles

SUFFIX = ".txt"
VERSION = "0.19"
OFFLOADS = True

# Values of --recompute-modules that a dense layer has -> the kinds of ops that run again.
MODULES = {
    "core_attn": ("scores", "softmax", "softmax_dropout", "context", "attention"),
    "layernorm": ("norm",),
    "mlp": ("up", "gelu", "silu_mul", "down"),
}


# Values of --offload-modules that a dense layer has -> the op, by its block, whose input is
# offloaded.
OFFLOADED = {
    "attn_norm": ("attention", "norm"),
    "qkv_linear": ("attention", "qkv"),
    "core_attn": ("attention", "attention"),
    "attn_proj": ("attention", "proj"),
    "mlp_norm": ("mlp", "norm"),
}
_NOTHING = "# nothing to recompute: leave the --recompute arguments out\n"


def choose(workload: Chain | Graph, plan: Plan) -> tuple[Choice, Simulation]:
    """The nearest method and number of layers of one pipeline stage, or the nearest modules."""
    if not isinstance(workload, Chain):
        layers = find_layers(workload, "megatron")
        linked = plan.setting.link is not None
        return nearest(workload, plan, _modules(workload, layers, linked))
    chain, stages = workload, layers_of(workload, "megatron")
    choices = [as_choice(chain, (), method="")]
    for k in range(1, len(stages) + 1):
        choices.append(as_choice(chain, singles(stages[:k]), method="block", layers=k))
        if len(stages) % k == 0:
            starts = range(stages.start, stages.stop, k)
            segments = tuple((i, i + k) for i in starts)
            choices.append(as_choice(chain, segments, method="uniform", layers=k))
    return nearest(chain, plan, choices)


def _offloads(graph: Graph, layers: Layers) -> dict[str, tuple[set[str], set[str]]]:
    """Module -> tensors that it reads, kinds of ops that write them."""
    found: dict[str, tuple[set[str], set[str]]] = {}
    for module, (block, op) in OFFLOADED.items():
        tensors: set[str] = set()
        makers: set[str] = set()
        for name in layers.names:
            kinds = layers.forward[name]
            made = {t: kind for kind, i in kinds.items() for t in graph.ops[i].writes}
            reader = kinds.get(f"{block}.{op}")
            if reader is None:
                continue
            reads = [t for t in graph.ops[reader].reads if t not in graph.inputs]
            tensors |= set(reads)
            makers |= {made[t] for t in reads if t in made}
        if tensors:
            found[module] = tensors, makers
    return found


def _sets_on_host(offloads: Collection[str]) -> Iterator[tuple[str, ...]]:
    for count in range(1, len(offloads) + 1):
        for chosen in combinations(offloads, count):
            # Megatron refuses to offload the projection's input without the input of the core
            # before it.
            if "attn_proj" not in chosen or "core_attn" in chosen:
                yield chosen


def _modules(graph: Graph, layers: Layers, linked: bool) -> Iterator[Choice]:
    known = {
        module: [kind for kind in layers.kinds if kind.rsplit(".", 1)[-1] in ends]
        for module, ends in MODULES.items()
    }
    known = {module: kinds for module, kinds in known.items() if kinds}
    if not known:
        raise UnsupportedError(
            f"megatron recomputes modules of transformer layers; {graph.name} names none",
            hint="a formula workload with --granularity op has them",
        )
    forward = {i for i, op in enumerate(graph.ops) if op.phase == "forward"}
    offloads = _offloads(graph, layers) if linked else {}
    for count in range(len(known) + 1):
        for chosen in combinations(known, count):
            kinds = {kind for module in chosen for kind in known[module]}
            again = {
                index
                for name in layers.names
                for kind, index in layers.forward[name].items()
                if kind in kinds
            }
            says = f"{', '.join(chosen)} of every layer" if chosen else "nothing recomputed"
            schedule = on_demand_schedule(graph, forward - again)
            yield Choice(schedule, says, {"modules": chosen, "host": ()})
            for host in _sets_on_host(offloads):
                if any(offloads[module][1] & kinds for module in host):
                    continue  # a recomputed tensor is not kept, so it cannot be offloaded
                tensors = sorted(set().union(*(offloads[module][0] for module in host)))
                there = f"{says}; inputs of {', '.join(host)} in host memory"
                data = {"modules": chosen, "host": host}
                yield Choice(schedule, there, data, tuple(tensors))


def render(workload: Chain | Graph, plan: Plan, choice: Choice, peak_bytes: int) -> str:
    """Arguments for the command line, a line each."""
    if "modules" in choice.data:
        modules, host = (" ".join(choice.data[name]) for name in ("modules", "host"))
        text = f"--recompute-granularity selective\n--recompute-modules {modules}\n"
        text = text if modules else _NOTHING
        if host:
            text += f"--fine-grained-activation-offloading\n--offload-modules {host}\n"
        return text
    if not choice.data["method"]:
        return _NOTHING
    return (
        "--recompute-granularity full\n"
        f"--recompute-method {choice.data['method']}\n"
        f"--recompute-num-layers {choice.data['layers']}\n"
    )

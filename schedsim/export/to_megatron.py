"""Arguments of Megatron-LM (megatron-core 0.16): whole layers, or modules of every layer."""

from __future__ import annotations

from collections.abc import Iterator
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

# Values of --recompute-modules that a dense layer has -> the kinds of ops that run again.
MODULES = {
    "core_attn": ("scores", "softmax", "softmax_dropout", "context", "attention"),
    "layernorm": ("norm",),
    "mlp": ("up", "gelu", "silu_mul", "down"),
}


def choose(workload: Chain | Graph, plan: Plan) -> tuple[Choice, Simulation]:
    """The nearest method and number of layers of one pipeline stage, or the nearest modules."""
    if not isinstance(workload, Chain):
        layers = find_layers(workload, "megatron")
        return nearest(workload, plan, _modules(workload, layers))
    chain, stages = workload, layers_of(workload, "megatron")
    choices = [as_choice(chain, (), method="")]
    for k in range(1, len(stages) + 1):
        choices.append(as_choice(chain, singles(stages[:k]), method="block", layers=k))
        if len(stages) % k == 0:
            starts = range(stages.start, stages.stop, k)
            segments = tuple((i, i + k) for i in starts)
            choices.append(as_choice(chain, segments, method="uniform", layers=k))
    return nearest(chain, plan, choices)


def _modules(graph: Graph, layers: Layers) -> Iterator[Choice]:
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
            yield Choice(on_demand_schedule(graph, forward - again), says, {"modules": chosen})


def render(workload: Chain | Graph, plan: Plan, choice: Choice, peak_bytes: int) -> str:
    """Arguments for the command line, a line each."""
    if "modules" in choice.data:
        if not choice.data["modules"]:
            return "# nothing to recompute: leave the --recompute arguments out\n"
        modules = " ".join(choice.data["modules"])
        return f"--recompute-granularity selective\n--recompute-modules {modules}\n"
    if not choice.data["method"]:
        return "# nothing to recompute: leave the --recompute arguments out\n"
    return (
        "--recompute-granularity full\n"
        f"--recompute-method {choice.data['method']}\n"
        f"--recompute-num-layers {choice.data['layers']}\n"
    )

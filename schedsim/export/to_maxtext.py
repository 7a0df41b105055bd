"""Configuration of MaxText: its remat policy, the same in every layer of its scan."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from ..dataflow.chain import Chain
from ..dataflow.graph import Graph
from ..errors import UnsupportedError
from ..plans.plan import Plan
from ..simulation.simulator import Simulation
from .choice import Choice, nearest
from .save_sets import INPUT, Layers, as_choice, find_layers
from .segments import and_on_host, layers_of, singles
from .segments import as_choice as as_segments

SUFFIX = ".yml"
VERSION = "0.2"
OFFLOADS = True

# Last part of an op's kind -> the names that MaxText gives to its outputs.
NAMES = {
    "qkv": ("qkv_proj", "query_proj", "key_proj", "value_proj"),
    "attention": ("context",),
    "context": ("context",),
    "proj": ("out_proj",),
    "up": ("mlpwi", "mlpwi_0", "mlpwi_1"),
    "down": ("mlpwo",),
}


def choose(workload: Chain | Graph, plan: Plan) -> tuple[Choice, Simulation]:
    """For a chain the full policy; for a graph any set of names that MaxText knows.

    MaxText's policy "none" is not offered: over a scan, and in Linen decoders, it passes no policy
    to ``jax.checkpoint``, which then recomputes everything, as "full" does.
    """
    if isinstance(workload, Chain):
        layers = layers_of(workload, "maxtext")
        full = [as_segments(workload, singles(layers))]
        return nearest(workload, plan, and_on_host(workload, plan, full))
    linked, layers_found = plan.setting.link is not None, find_layers(workload, "maxtext")
    return nearest(workload, plan, _choices(workload, layers_found, linked))


def _choices(graph: Graph, layers: Layers, linked: bool) -> Iterator[Choice]:
    known = [kind for kind in layers.kinds if kind.rsplit(".", 1)[-1] in NAMES]
    if not known:
        raise UnsupportedError(
            f"maxtext saves products of transformer layers by name; {graph.name} has none",
            hint="a formula workload with --granularity op has them",
        )
    total = len(layers.names)
    for count in range(len(known) + 1):
        for saved in combinations(known, count):
            yield as_choice(graph, layers, saved, total)
            if not linked:
                continue
            for held in range(count + 1):
                for host in combinations(saved, held):
                    yield as_choice(graph, layers, saved, total, {INPUT, *host})
                    if host:
                        yield as_choice(graph, layers, saved, total, host)


def render(workload: Chain | Graph, plan: Plan, choice: Choice, peak_bytes: int) -> str:
    """Lines for the configuration file."""
    if isinstance(workload, Chain):
        if choice.host:
            return 'remat_policy: "custom"\ndecoder_layer_input: "offload"\n'
        return 'remat_policy: "full"\n'
    saved, host = (
        {kind.rsplit(".", 1)[-1] for kind in choice.data[name]} for name in ("saved", "host")
    )
    inputs = "offload" if INPUT in host else "device"
    lines = ['remat_policy: "custom"', f'decoder_layer_input: "{inputs}"']
    written: dict[str, str] = {}
    for kind, names in NAMES.items():
        place = "offload" if kind in host else "device" if kind in saved else "remat"
        for name in names:
            if written.get(name, "remat") == "remat":
                written[name] = place
    return "\n".join([*lines, *(f'{name}: "{value}"' for name, value in written.items())]) + "\n"

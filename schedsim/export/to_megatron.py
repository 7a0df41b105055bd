"""Arguments of Megatron-LM: full recomputation, of the first layers or in equal segments."""

from __future__ import annotations

from ..dataflow.chain import Chain
from ..plans.plan import Plan
from ..simulation.simulator import Simulation
from .choice import Choice, nearest
from .segments import as_choice, singles
from .to_transformers import layers_of

SUFFIX = ".txt"


def choose(chain: Chain, plan: Plan) -> tuple[Choice, Simulation]:
    """The nearest method and number of layers, of one pipeline stage."""
    layers = layers_of(chain, "megatron")
    choices = [as_choice(chain, (), method="")]
    for k in range(1, len(layers) + 1):
        choices.append(as_choice(chain, singles(layers[:k]), method="block", layers=k))
        if len(layers) % k == 0:
            starts = range(layers.start, layers.stop, k)
            segments = tuple((i, i + k) for i in starts)
            choices.append(as_choice(chain, segments, method="uniform", layers=k))
    return nearest(chain, plan, choices)


def render(chain: Chain, plan: Plan, choice: Choice, peak_bytes: int) -> str:
    """Arguments for the command line, a line each."""
    if not choice.data["method"]:
        return "# nothing to recompute: leave the --recompute arguments out\n"
    return (
        "--recompute-granularity full\n"
        f"--recompute-method {choice.data['method']}\n"
        f"--recompute-num-layers {choice.data['layers']}\n"
    )

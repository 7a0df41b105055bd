"""Code for torch.compile: a solver that tells its partitioner what the forward saves.

The partitioner asks about ops that are expensive to recompute (products, attention). It recomputes
cheap ops by itself where that lowers memory traffic. A solver returns a save set, without an order.
"""

from __future__ import annotations

from ..dataflow.graph import Graph
from ..plans.plan import Plan
from ..simulation.simulator import Simulation
from .choice import Choice, nearest
from .code import fill
from .save_sets import kept_ops, on_demand_schedule
from .to_torch_sac import aten_name

SUFFIX = ".py"
MOST_THRESHOLDS = 12

_CODE = '''"""What torch.compile saves for the backward. Written by schedsim.

    import torch._functorch.config as config
    config.activation_memory_budget = 0.5  # anything below 1 asks the solver
    config.activation_memory_budget_solver = Solver()
    model = torch.compile(model)
"""

from torch._inductor.custom_graph_pass import CustomKnapsackSolver

WORKLOAD = {name}
# Op -> for each of its calls in the forward, whether its output is saved.
SAVE = {save}
SAME = {{"mm": "addmm", "baddbmm": "bmm"}}


class Solver(CustomKnapsackSolver):
    """Saves what the plan keeps, recomputes what it recomputes; saves what it does not know."""

    def __call__(self, memory, joint_graph, max_memory, node_info, candidates):
        index = {{node.name: i for i, node in enumerate(candidates)}}
        saved, recomputed, calls = [], [], {{}}
        for node in joint_graph.nodes:
            name = getattr(node.target, "__name__", str(node.target)).split(".")[0]
            name = "attention" if "scaled_dot_product" in name else SAME.get(name, name)
            at = calls[name] = calls.get(name, -1) + 1
            if node.name in index:
                known = SAVE.get(name, ())
                keep = at >= len(known) or known[at]
                (saved if keep else recomputed).append(index[node.name])
        return saved, recomputed

    def uuid(self):
        return {uuid}
'''


def choose(graph: Graph, plan: Plan) -> tuple[Choice, Simulation]:
    """The nearest save set: the plan's, or the ops with the highest time per byte."""
    return nearest(graph, plan, _choices(graph, plan))


def _choices(graph: Graph, plan: Plan) -> list[Choice]:
    forward = [i for i, op in enumerate(graph.ops) if op.phase == "forward"]
    kept = kept_ops(graph, plan)
    sets = [kept, forward]

    def worth(i: int) -> float:
        op = graph.ops[i]
        return op.time_s / max(1, sum(op.writes.values()))

    ranked = sorted(forward, key=lambda i: (-worth(i), i))
    step = max(1, len(ranked) // MOST_THRESHOLDS)
    for count in range(0, len(ranked), step):
        sets += [ranked[:count], sorted({*ranked[:count], *kept})]
    return [
        Choice(
            on_demand_schedule(graph, saved),
            f"{len(saved)} of {len(forward)} forward ops saved",
            {"saved": frozenset(saved)},
        )
        for saved in sets
    ]


def render(graph: Graph, plan: Plan, choice: Choice, peak_bytes: int) -> str:
    """A module with the solver."""
    save: dict[str, list[bool]] = {}
    for i, op in enumerate(graph.ops):
        if op.phase == "forward":
            save.setdefault(aten_name(op.name), []).append(i in choice.data["saved"])
    return fill(_CODE, name=graph.name, save=save, uuid=plan.workload.content_hash)

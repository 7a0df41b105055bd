"""Checkmate 2020: the staged MILP loses nothing on a small net; table 2; largest batch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from _claims import Claim, Instances, Source, main
from _common import budget_at, forward_share, geometric_mean, searched, store_all

from schedsim import Graph, Op
from schedsim.api import try_plan

SOURCE = Source(
    title="Jain et al. 2020, Checkmate",
    what="partitioned and unpartitioned optimum; table 2's greedy heuristic; MobileNet's batch",
)
FRACTIONS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
# Geometric mean of cost over optimum of AP greedy, table 2.
TABLE_2 = {
    "MobileNet": ("cm_mobilenet_train", 1.07),
    "VGG16": ("cm_vgg16_train", 1.06),
    "ResNet50": ("cm_resnet50_train", 1.25),
}
BATCH = 512  # of the published MobileNet graph
LIMIT_BYTES = 16 * 10**9


def linear_net(num_layers: int) -> Graph:
    """Layers, a loss and their gradients, 2 L + 1 ops of a second and a byte."""
    forward = [
        Op(f"f{i}", time_s=1, reads=(f"x{i}",) if i else (), writes={f"x{i + 1}": 1})
        for i in range(num_layers)
    ]
    last = f"x{num_layers}"
    loss = Op("loss", "loss", time_s=1, reads=(last,), writes={f"d{num_layers}": 1})
    backward = []
    for i in range(num_layers - 1, -1, -1):
        reads = (*((f"x{i}",) if i else ()), f"x{i + 1}", f"d{i + 1}")
        backward.append(Op(f"b{i}", "backward", 1, reads=reads, writes={f"d{i}": 1}))
    return Graph("linear", (*forward, loss, *backward))


@cache
def ratios(instances: Instances, name: str, candidates: str) -> dict[float, float]:
    """Budget fraction -> time of Chen's greedy over the best known, where both fit."""
    graph = instances.graph(name)
    found = {}
    for fraction in FRACTIONS:
        budget = budget_at(graph, fraction)
        greedy = try_plan(graph, budget, "chen_articulation", candidates=candidates)
        best = searched(graph, budget, max_moves=20_000, time_limit_s=3)
        if greedy.makespan_s is not None and best.makespan_s is not None:
            found[fraction] = greedy.makespan_s / best.makespan_s
    return found


def claims(instances: Instances) -> Iterator[Claim]:
    net = linear_net(8)
    yield Claim(what="nodes of the 8-layer linear net", claimed=17, ours=net.num_ops, seen="text")
    for budget in (4, 5, 6):
        whole = try_plan(net, budget, "exhaustive").makespan_s
        staged = try_plan(net, budget, "checkmate", time_limit_s=20).makespan_s
        assert whole is not None
        yield Claim(
            what=f"8-layer net, budget {budget}: optimum in stages over that of all schedules",
            claimed=1,
            ours=None if staged is None else staged / whole,
            seen="text" if budget == 4 else "formula",
            why="" if staged is not None else "the MILP did not end in 20 s",
        )
    if not instances:
        return
    for network, (name, mean) in TABLE_2.items():
        found = ratios(instances, name, "articulation")
        budgets = ", ".join(f"{100 * fraction:.0f}" for fraction in found)
        yield Claim(
            what=f"table 2, {network}: AP greedy over optimum, geometric mean",
            claimed=mean,
            ours=geometric_mean(found.values()),
            within=0.05,
            seen="text",
            why=f"Which budgets they average over is not printed; ours are {budgets} % of the "
            "peak, as many as fit.",
        )
        generalised = ratios(instances, name, "all")
        yield Claim(
            what=f"{network}: linearised greedy over optimum, the same budgets",
            claimed=1,
            ours=geometric_mean(generalised.values()),
            relation="at least",
            seen="formula",
            check="No plan takes less than a proven optimum.",
        )
    graph = instances.graph("cm_mobilenet_train")
    per_image = store_all(graph).peak_bytes / BATCH
    yield Claim(
        what="MobileNet in 16 GB: largest batch with everything kept",
        claimed=1105 / 5.1,
        ours=LIMIT_BYTES / per_image,
        within=11,
        seen="text",
        why="Parameters and their gradients, which they count, are not in the published graph.",
    )
    plan = searched(graph, int(LIMIT_BYTES * BATCH / 1105), max_moves=50_000, time_limit_s=8)
    yield Claim(
        what="MobileNet, batch 1105 in 16 GB: overhead, within one more forward",
        claimed=100 * forward_share(graph),
        ours=None if plan.overhead is None else 100 * plan.overhead,
        unit="%",
        relation="at most",
        seen="text",
        why="" if plan.feasible else "the search found no plan that fits",
    )
    for network, mean in (("U-Net", 1.27), ("VGG19", 1.39)):
        yield Claim(
            what=f"table 2, {network}: AP greedy over optimum",
            claimed=mean,
            ours=None,
            seen="text",
            why="The graph is not among the instances.",
        )
    yield Claim(
        what="8-layer net: seconds of the unpartitioned MILP over the partitioned",
        claimed=9.4 * 3600 / 0.23,
        ours=None,
        seen="text",
        why="Gurobi on their machine.",
    )


def figure(page, instances: Instances) -> None:
    axes = page.add_subplot()
    if not instances:
        return
    for network, (name, _) in TABLE_2.items():
        for candidates, style in (("articulation", "o-"), ("all", "s--")):
            found = ratios(instances, name, candidates)
            label = f"{network}, {'AP' if candidates == 'articulation' else 'linearised'} greedy"
            axes.plot([100 * f for f in found], list(found.values()), style, label=label)
    axes.set(xlabel="budget, % of the store-all peak", ylabel="time over the best known")
    axes.legend(fontsize=7)


if __name__ == "__main__":
    main(__file__, SOURCE, claims, figure)

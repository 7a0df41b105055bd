"""Rockmate 2023: two to five times less activation memory, planned block by block."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from _claims import Claim, Instances, Source, main
from _common import budget_at, overhead_percent
from _networks import by_blocks, op_graph

from schedsim.api import try_plan

SOURCE = Source(
    title="Zhao, Le Hellard, Eyraud-Dubois, Gusak, Beaumont 2023, Rockmate",
    what="overheads at a half to a fifth of the memory; plans by blocks against whole-graph ones",
)
NETWORKS = (("resnet-101", 64), ("gpt2-medium", 8))


def claims(instances: Instances) -> Iterator[Claim]:
    for preset, batch in NETWORKS:
        for times in (2, 3, 5):
            plan = by_blocks(preset, batch, 1 / times)
            least = plan.lower_bound_s / plan.store_all_s - 1
            yield Claim(
                what=f"{preset}: {times} times less memory, overhead",
                claimed=20,
                ours=overhead_percent(plan),
                unit="%",
                relation="at most",
                seen="abstract",
                why=f"No plan in this order of ops takes less than {100 * least:.1f} % more on "
                "this roofline (proven)."
                if least > 0.2
                else ("" if plan.feasible else "no plan found"),
            )
    for preset, batch, layers in (("gpt2", 8, 8), ("gpt2", 8, 12)):
        graph = op_graph(preset, batch, layers=layers)
        for fraction in (0.7, 0.5):
            blocks = by_blocks(preset, batch, fraction, layers)
            whole = try_plan(graph, budget_at(graph, fraction), "cuts")
            ours = None
            if blocks.makespan_s is not None and whole.status == "optimal":
                ours = blocks.makespan_s / whole.lower_bound_s
            yield Claim(
                what=f"{layers} layers of {preset} at {100 * fraction:.0f} %: by blocks over the "
                "whole graph's optimum",
                claimed=1,
                ours=ours,
                relation="at least",
                seen="formula",
                check="No plan takes less than a proven optimum.",
                why="" if ours is not None else "no proven optimum to compare with",
            )


def figure(page, instances: Instances) -> None:
    axes = page.add_subplot()
    for preset, batch in NETWORKS:
        plans = {times: by_blocks(preset, batch, 1 / times) for times in (2, 3, 5)}
        line = [overhead_percent(plan) for plan in plans.values()]
        bound = [100 * (plan.lower_bound_s / plan.store_all_s - 1) for plan in plans.values()]
        (drawn,) = axes.plot(list(plans), line, "o-", label=f"{preset}, planned")
        axes.plot(list(plans), bound, "--", color=drawn.get_color(), label="proven least")
    axes.axhspan(10, 20, alpha=0.1, label="claimed")
    axes.set(xlabel="times less memory", ylabel="overhead, %", xticks=[2, 3, 5], ylim=(0, 40))
    axes.legend()


if __name__ == "__main__":
    main(__file__, SOURCE, claims, figure)

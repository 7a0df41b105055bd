"""POFO 2021: what a link to the host adds to rematerialisation, at a quarter of the memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _claims import Claim, Instances, Source, main
from _common import overhead_percent, store_all
from schedsim.algorithms.chains.frontier import exact_frontier

from schedsim import Chain, Plan
from schedsim.api import try_plan
from schedsim.workloads import WorkloadOptions, build_workload

SOURCE = Source(
    title="Beaumont, Eyraud-Dubois, Shilova 2021, POFO",
    what="overheads of rematerialisation with and without offloading at 1/4 to 1/6 of the memory",
)
NETWORKS = (("resnet-101", 64), ("gpt2-medium", 8))
LINK = "12GB/s"


@cache
def network(preset: str, batch: int) -> Chain:
    """Activations alone, on a V100 at half its peak rates."""
    options = WorkloadOptions(preset=preset, batch=batch, device="v100", efficiency=0.5)
    chain = build_workload(options).workload
    assert isinstance(chain, Chain)
    return chain


@cache
def planned(preset: str, batch: int, times: int) -> Plan:
    """With copies beside compute, at a share of the store-all peak."""
    chain = network(preset, batch)
    return try_plan(
        chain,
        store_all(chain).peak_bytes // times,
        "offload",
        link=LINK,
        max_moves=30_000,
        num_threads=1,
        time_limit_s=5,
    )


@cache
def without(preset: str, batch: int, times: int) -> float | None:
    """Overhead in percent of the optimal persistent schedule; ``None`` where none fits."""
    chain = network(preset, batch)
    curve = exact_frontier(chain)
    budget = store_all(chain).peak_bytes // times
    at = int(np.searchsorted(curve.budget_bytes, budget, side="right")) - 1
    return None if at < 0 else 100 * (float(curve.makespan_s[at]) / chain.store_all_s - 1)


def claims(instances: Instances) -> Iterator[Claim]:
    for preset, batch in NETWORKS:
        for times in (4, 5, 6):
            plan = planned(preset, batch, times)
            least = 100 * (plan.lower_bound_s / plan.store_all_s - 1)
            yield Claim(
                what=f"{preset}: {times} times less activation memory, overhead of both",
                claimed=20,
                ours=overhead_percent(plan),
                unit="%",
                relation="at most",
                seen="abstract",
                why=f"No schedule on this link and roofline takes less than {least:.0f} % (proven)."
                if least > 20
                else "Without copies no plan by blocks fits."
                if without(preset, batch, times) is None
                else "",
            )
        for times in (2, 4, 5):
            alone, both = (
                without(preset, batch, times),
                overhead_percent(planned(preset, batch, times)),
            )
            yield Claim(
                what=f"{preset}: {times} times less: share of the overhead that copies remove",
                claimed=100 / 3,
                ours=None if alone is None or both is None else 100 * (1 - both / alone),
                unit="%",
                relation="at least",
                within=2,
                seen="abstract",
                why="A layer's bundles are too large for this link while it computes: eager "
                "attention moves its s x s matrices."
                if preset.startswith("gpt")
                else "",
            )


def figure(page, instances: Instances) -> None:
    axes = page.add_subplot()
    for preset, batch in NETWORKS:
        chosen = (2, 4, 5, 6)
        both = [overhead_percent(planned(preset, batch, times)) for times in chosen]
        (drawn,) = axes.plot(chosen, both, "o-", label=f"{preset}, with copies")
        alone = [without(preset, batch, times) for times in chosen]
        axes.plot(
            [k for k, value in zip(chosen, alone, strict=True) if value is not None],
            [value for value in alone if value is not None],
            "s--",
            color=drawn.get_color(),
            label="without",
        )
    axes.axhline(20, ls=":", color="grey", label="claimed, 4 to 6 times")
    axes.set(xlabel="times less memory", ylabel="overhead, %", title=f"V100 at half peak, {LINK}")
    axes.legend(fontsize=7)


if __name__ == "__main__":
    main(__file__, SOURCE, claims, figure)

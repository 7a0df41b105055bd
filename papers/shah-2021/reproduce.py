"""MONeT 2021: overheads of ResNet-50 and MobileNet from two thirds to a third of the memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from _claims import Claim, Instances, Source, main
from _common import budget_at, overhead_percent, searched, store_all
from _networks import op_graph

from schedsim import Plan
from schedsim.workloads import PRESETS
from schedsim.workloads.model_state import model_state_bytes
from schedsim.workloads.resnet import ResNetConfig, resnet_model

SOURCE = Source(
    title="Shah et al. 2021, MONeT",
    what="overheads of ResNet-50 and MobileNet at five to ten GB; what needs a choice of kernels",
)
GB = (10, 9, 8, 7, 6, 5)
WHOLE_GB = {"ResNet-50": 15.06, "MobileNet": 14.46}
PRINTED = {
    "ResNet-50": (3.22, 4.68, 5.56, 7.28, 9.31, 11.95),
    "MobileNet": (2.40, 3.10, 4.77, 5.53, 7.55, 8.72),
}


@cache
def planned(instances: Instances, network: str, budget_gb: int) -> Plan:
    """At the same share of the whole as in the paper, parameters and workspaces aside."""
    name = "resnet-50"
    graph = op_graph(name, 184)
    if network == "MobileNet":
        graph = instances.graph("cm_mobilenet_train")
    budget = budget_at(graph, budget_gb / WHOLE_GB[network])
    return searched(graph, budget, max_moves=15_000, time_limit_s=3)


def claims(instances: Instances) -> Iterator[Claim]:
    config = PRESETS["resnet-50"]
    assert isinstance(config, ResNetConfig)
    state = model_state_bytes(resnet_model(config).num_parameters, optimizer="sgd-momentum")
    whole = store_all(op_graph("resnet-50", 184)).peak_bytes
    yield Claim(
        what="ResNet-50, batch 184, nothing recomputed, weights and momentum included",
        claimed=15.06,
        ours=(whole + state) / 1e9,
        unit="GB",
        within=1,
        seen="text",
        why="Convolutions take no workspace in ours, and ReLU and the additions run in place.",
    )
    for network, printed in PRINTED.items():
        if network == "MobileNet" and not instances:
            continue
        for budget, overhead in zip(GB, printed, strict=True):
            plan = planned(instances, network, budget)
            yield Claim(
                what=f"{network} at {budget} of {WHOLE_GB[network]} GB: its overhead is reached",
                claimed=overhead,
                ours=overhead_percent(plan),
                unit="%",
                relation="at most",
                seen="text",
                why="" if plan.feasible else "no plan found",
            )
        third = planned(instances, network, 5)
        yield Claim(
            what=f"{network}: three times less memory at 9 to 16 %",
            claimed=16,
            ours=overhead_percent(third),
            unit="%",
            relation="at most",
            seen="text",
        )
    for network, overhead in (("VGG-16, 9.71 of 14.12 GB", -5.30), ("UNet, 10 of 14.32 GB", -4.10)):
        yield Claim(
            what=f"{network}: overhead",
            claimed=overhead,
            ours=None,
            unit="%",
            seen="text",
            why="Below zero by faster kernels of more workspace: ours has one kernel an op.",
        )


def figure(page, instances: Instances) -> None:
    axes = page.add_subplot()
    for network, printed in PRINTED.items():
        if network == "MobileNet" and not instances:
            continue
        line = [overhead_percent(planned(instances, network, gb)) for gb in GB]
        (drawn,) = axes.plot(GB, line, "o-", label=f"{network}, ours")
        axes.plot(GB, printed, "x--", color=drawn.get_color(), label="printed")
    axes.set(xlabel="GB, of 15.06 and 14.46", ylabel="overhead, %")
    axes.legend()


if __name__ == "__main__":
    main(__file__, SOURCE, claims, figure)

"""What is said of a plan: numbers of its replay, of its setting, and of the proof."""

from __future__ import annotations

import pytest
from four_stages import CHAIN

import schedsim
from schedsim import Chain, Graph, Op, Schedule, Stage, simulate
from schedsim.cli.given.loaded import Loaded
from schedsim.cli.planning.facts import show_plan
from schedsim.dataflow.variants import StageVariant


def shown(capsys, workload, plan) -> dict[str, str]:
    """Label -> value of the facts; a fact without a label belongs to the one before it."""
    loaded = Loaded(plan.setting.resolve(workload), (), None, workload)
    show_plan(loaded, plan, simulate(workload, Schedule.store_all(workload)))
    found: dict[str, str] = {}
    label = ""
    for line in capsys.readouterr().out.splitlines():
        label = line[:16].strip() or label
        before = f"{found[label]}; " if label in found else ""
        found[label] = before + line[16:].strip()
    return found


def test_a_plain_plan(capsys):
    """Parts of the peak add up to it; two forwards run again for 2 s."""
    facts = shown(capsys, CHAIN, schedsim.plan(CHAIN, 60))
    assert facts["plan"].startswith("optimal, by frontier in ")
    assert facts["peak"] == "60 B at B3 (s3), run 5 of 11"
    parts = [facts[name] for name in ("checkpoints", "saved", "gradients")]
    assert sum(int(part.split()[0]) for part in parts) == 60
    assert facts["store-all peak"] == "92 B, of which the plan needs 65.2 %"
    assert facts["step time"] == "14 s, +16.67 % over store-all 12 s"
    assert facts["recomputed"] == "2 of 11 op runs"
    assert "variants" not in facts
    assert "offloaded" not in facts


def test_variants_are_counted_and_explained(capsys):
    """How often each, from where to where, and what its kind does to training."""
    stages = tuple(
        Stage(f"s{i}", 1, 2, 4, 20, variants=(StageVariant("int8", "quantize", 8),))
        for i in range(4)
    )
    chain = Chain("varied", 4, stages)
    plan = schedsim.plan(chain, 56, allow="quantize")
    facts = shown(capsys, chain, plan)
    count = len(plan.variants)
    assert count > 1
    assert facts["variants"] == (
        f"int8: {count} times, {plan.variants[0].stage} .. {plan.variants[-1].stage}; "
        "quantize: saved as integers of fewer bits: gradients of weights change"
    )


@pytest.mark.parametrize("allocator", ["best-fit", "cuda-caching"])
def test_an_allocator_says_what_it_reserves_and_what_was_planned_within(capsys, allocator):
    """Both numbers are those of the plan's setting."""
    plan = schedsim.plan(CHAIN, 40 << 20, allocator=allocator)
    facts = shown(capsys, CHAIN, plan)
    assert f"by {allocator}" in facts["reserved"]
    assert facts["planned for"].startswith("41.94 MB")


def test_a_step_without_bytes(capsys):
    """Nothing is divided by its peak."""
    graph = Graph("none", (Op("f", time_s=1.0), Op("b", "backward", time_s=1.0)))
    facts = shown(capsys, graph, schedsim.plan(graph, 0))
    assert facts["store-all peak"] == "0 B, of which the plan needs 0 %"

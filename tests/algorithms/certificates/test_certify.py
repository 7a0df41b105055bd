"""From plans to certificates, each looked at by the stand-alone checker."""

import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rematlib import script
from schedsim.algorithms.certificates.certify import certify, persistent_curve, prove_by_cuts
from schedsim.algorithms.exhaustive import exhaustive
from tiers import examples, slow_where
from training_graphs import random_training_graph

import schedsim
from schedsim.api import try_plan
from schedsim.files.workload_files import workload_to_dict
from schedsim.plans.effort import Effort
from schedsim.plans.links import Link
from schedsim.plans.offloading import Offloading
from schedsim.plans.scope import ANY_SCHEDULE
from schedsim.plans.setting import AllocatorChoice, Setting, StepChanges
from schedsim.workloads.build import build_workload
from schedsim.workloads.options import WorkloadOptions

check = script("check")


def verified(certificate):
    """What the checker says of it, as it stands in a file."""
    document = json.loads(json.dumps(certificate.to_dict()))
    return check.verify(check.Instance(document["workload"]), document)


@st.composite
def chains(draw):
    num = draw(st.integers(1, 7))
    column = st.lists(st.integers(0, 9), min_size=num, max_size=num)
    output = draw(column)
    return schedsim.Chain.from_arrays(
        "drawn",
        draw(st.integers(0, 9)),
        forward_s=[time / 8 for time in draw(column)],
        backward_s=draw(column),
        output_bytes=output,
        saved_bytes=[a + b for a, b in zip(output, draw(column), strict=True)],
        forward_workspace_bytes=draw(column),
        backward_workspace_bytes=draw(column),
        static_bytes=draw(st.integers(0, 9)),
    )


@settings(max_examples=examples(40), deadline=None)
@given(chains())
def test_every_budget_of_a_chain_is_proven(chain):
    curve = persistent_curve(chain)
    least = curve.points[0][0]
    instance = check.Instance(schedsim.files.document.to_dict(chain))
    for budget in (least - 1, least, curve.points[-1][0]):
        if budget < 0:
            continue
        certificate = certify(chain, try_plan(chain, budget, "frontier"))
        found = check.verify(instance, json.loads(json.dumps(certificate.to_dict())))
        assert found["optimal"] == found["schedule"] == (budget >= least)
        assert found["least"]
    assert [m for m, _ in check.persistent_curve(instance.graph)] == [m for m, _ in curve.points]


def test_real_times_are_proven_to_a_billionth():
    chain = build_workload(WorkloadOptions(layers=12)).workload
    certificate = certify(chain, schedsim.plan(chain, "40%"))
    assert certificate.optimal
    assert 0 < certificate.gap < Fraction(1, 10**9)
    assert certificate.bound.proof["table_hash"] is None
    assert verified(certificate)["optimal"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", slow_where(range(1, 4), lambda seed: seed != 2))
def test_graphs_are_proven_by_cuts(seed):
    rng = np.random.default_rng(seed)
    graph = random_training_graph(rng, 5)
    plan = try_plan(graph, "85%", "local_search", effort=0.3)
    certificate = certify(graph, plan, effort=1.0)
    if plan.schedule is None:
        return
    found = verified(certificate)
    assert found["schedule"]
    assert found["bound"]
    assert certificate.bound.bound_s >= Fraction(graph.store_all_s)


def test_the_optimum_over_any_schedule_of_a_tiny_graph_is_proven():
    chain = schedsim.Chain.from_arrays(
        "four", 1, forward_s=[1] * 4, backward_s=[1] * 4, output_bytes=[1] * 4, saved_bytes=[1] * 4
    )
    certificate = certify(chain.graph, exhaustive(chain.graph, 6))
    assert certificate.bound.scope == ANY_SCHEDULE
    assert certificate.optimal
    assert verified(certificate)["optimal"]
    of_chain = certify(chain, exhaustive(chain, 5))  # 11, where the best persistent takes 13
    assert of_chain.bound.scope == ANY_SCHEDULE
    assert of_chain.makespan_s == 11
    assert verified(of_chain)["optimal"]


@pytest.mark.slow
def test_times_without_a_common_unit_are_proven_too():
    graph = build_workload(WorkloadOptions(preset="gpt2", layers=1, granularity="op")).workload
    certificate = certify(graph, schedsim.plan(graph, "85%", effort=1.0), effort=4.0)
    assert certificate.bound.proof["kind"] == "cut-tree"
    assert certificate.gap < Fraction(1, 50)
    verified(certificate)


def test_what_certificates_do_not_speak_of_is_refused():
    chain = schedsim.Chain.from_arrays(
        "two", 4, forward_s=[1, 1], backward_s=[2, 2], output_bytes=[4, 4], saved_bytes=[10, 10]
    )
    link = Link(16.0)
    for what, setting in (
        ("copies", Setting(copies=Offloading(link, link, 99))),
        ("an allocator", Setting(allocator=AllocatorChoice("best-fit"))),
        ("a changed step", Setting(step=StepChanges("block", accumulate=2))),
    ):
        changed = replace(schedsim.plan(chain, 26), setting=setting)
        with pytest.raises(schedsim.UnsupportedError, match=what):
            certify(chain, changed)
    with pytest.raises(schedsim.InvalidScheduleError, match="another workload"):
        certify(replace(chain, static_bytes=1), schedsim.plan(chain, 26))


@pytest.mark.slow
def test_a_proof_by_intervals_of_many_lengths():
    """A tight chain, where they prove more: the proof says so, and is none without."""
    ones, twos = [1] * 10, [2] * 10
    graph = schedsim.Chain.from_arrays(
        "tight", 1, forward_s=ones, backward_s=twos, output_bytes=ones, saved_bytes=twos
    ).graph
    proven = prove_by_cuts(graph, 7, "fixed", Fraction(10**6), Effort(1.0), 1)
    assert proven.proof["doubling"] is True
    assert proven.bound_s <= 49  # the optimum, by the exact search over any schedule
    instance = check.Instance(workload_to_dict(graph))
    bound = {"scope": check.FIXED, "bound_s": str(proven.bound_s), "proof": proven.proof}
    assert check.check_bound(instance, 7, bound) == proven.bound_s
    del proven.proof["doubling"]
    with pytest.raises(check.Rejected):
        check.check_bound(instance, 7, bound)

"""Variants: chosen as the best of all assignments on chains, named by plans, off by default."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from chains import random_chain
from hypothesis import given, settings
from hypothesis import strategies as st
from schedsim.algorithms.chains.frontier import exact_frontier, frontier
from schedsim.algorithms.chains.rotor import rotor
from tiers import examples

import schedsim
from schedsim import Chain, Graph, InvalidWorkloadError, Op, SchedsimError, Schedule, simulate
from schedsim.cli.app import run
from schedsim.dataflow.variants import ChosenVariant, GraphVariant, StageVariant, resolve
from schedsim.files.document import from_dict, to_dict
from schedsim.files.workload_files import workload_hash
from schedsim.workloads import WorkloadOptions, build_workload

ALL = ("quantize", "precision", "approx", "share")
KINDS = ("quantize", "approx", "quantize+approx")


def varied(rng: np.random.Generator, chain: Chain) -> Chain:
    """`chain` with up to three variants a stage, some of them no gain."""
    stages = []
    for stage in chain.stages:
        found = []
        for i in range(int(rng.integers(0, 4))):
            found.append(
                StageVariant(
                    f"v{i}",
                    KINDS[int(rng.integers(0, 3))],
                    int(rng.integers(stage.output_bytes, stage.saved_bytes + 2)),
                    float(rng.integers(0, 4)),
                    int(rng.integers(0, 12)) if rng.random() < 0.5 else None,
                    int(rng.integers(0, 12)) if rng.random() < 0.5 else None,
                )
            )
        stages.append(
            schedsim.Stage(
                **{n: getattr(stage, n) for n in stage.__slots__ if n != "variants"},
                variants=tuple(found),
            )
        )
    return Chain(chain.name, chain.input_bytes, tuple(stages), chain.static_bytes, 1.0, 3)


def assignments(chain: Chain, allow: tuple[str, ...]):
    """Every choice of a variant, or none, for each stage."""
    options = []
    for stage in chain.stages:
        usable = [v for v in stage.variants if set(v.kind.split("+")) <= set(allow)]
        options.append([None, *(ChosenVariant(v, stage.name) for v in usable)])
    for choice in itertools.product(*options):
        yield [c for c in choice if c is not None]


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([("quantize",), ("approx",), ("quantize", "approx")]))
def test_the_programme_is_the_best_of_all_assignments(seed, allow):
    """Against the exact curve of every assignment by itself, at each of its break points."""
    rng = np.random.default_rng(seed)
    chain = varied(rng, random_chain(rng, int(rng.integers(1, 5))))
    curves = [exact_frontier(resolve(chain, c)) for c in assignments(chain, allow)]
    ours = exact_frontier(chain, allow=allow)

    def at(curve, budget):
        fits = np.flatnonzero(curve.budget_bytes <= budget)
        return curve.makespan_s[fits[-1]] if fits.size else np.inf

    budgets = sorted({int(b) for curve in (*curves, ours) for b in curve.budget_bytes})
    for budget in budgets:
        best = min(at(curve, budget) for curve in curves)
        assert at(ours, budget) == pytest.approx(best), budget
        for planner in (frontier, rotor):
            plan = planner(chain, budget, allow=allow)
            if best == np.inf:
                assert plan.status == "infeasible"
                continue
            assert plan.makespan_s == pytest.approx(best)
            assert plan.peak_bytes <= budget
            replay = plan.simulate(chain)
            assert (replay.peak_bytes, replay.makespan_s) == (plan.peak_bytes, plan.makespan_s)


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(0, 10**6))
def test_nothing_is_used_unless_allowed(seed):
    """Neither in the plan nor in the hash; and a variant that is no gain is not used."""
    rng = np.random.default_rng(seed)
    chain = random_chain(rng, int(rng.integers(1, 6)))
    offering = varied(rng, Chain(chain.name, chain.input_bytes, chain.stages, chain.static_bytes))
    plain = Chain(chain.name, chain.input_bytes, chain.stages, chain.static_bytes, 1.0, 3)
    assert workload_hash(offering) == workload_hash(plain)
    budget = simulate(plain, Schedule.store_all(plain)).peak_bytes
    for share in (0.6, 0.8, 1.0):
        one = frontier(plain, int(budget * share))
        two = frontier(offering, int(budget * share))
        assert (one.makespan_s, one.min_feasible_bytes) == (two.makespan_s, two.min_feasible_bytes)
        assert two.variants == ()
    assert frontier(offering, budget, allow=ALL).variants == ()


def test_plans_name_their_variants_and_keep_them(tmp_path, capsys, monkeypatch):
    """From the command line to the file and back, on the workload without variants."""
    monkeypatch.chdir(tmp_path)
    arguments = ["--layers", "4", "--mem", "3GB"]
    assert run(["plan", *arguments, "--allow", "quantize,approx", "-o", "plan.json"]) == 0
    said = capsys.readouterr().out
    plan = schedsim.load("plan.json")
    assert plan.variants
    assert all(set(c.variant.kind.split("+")) <= {"quantize", "approx"} for c in plan.variants)
    assert plan.variants[0].variant.name in said
    assert "gradients of weights change" in said
    assert from_dict(to_dict(plan)) == plan
    assert run(["simulate", "--layers", "4", "plan.json"]) == 0
    assert run(["explain", "--layers", "4", "plan.json"]) == 0
    capsys.readouterr()
    assert run(["simulate", "--layers", "5", "plan.json"]) == 2
    assert "--layers is 5, in the plan 4" in capsys.readouterr().err
    assert run(["plan", *arguments, "--allow", "quantise"]) == 2
    assert "is not a kind of variant" in capsys.readouterr().err
    assert run(["plan", *arguments, "--allow", "approx", "--planner", "revolve"]) == 2


def test_less_time_for_more_freedom():
    """Each kind allowed besides never costs time."""
    chain = build_workload(WorkloadOptions(layers=8, allow=ALL)).workload
    last = np.inf
    for count in range(len(ALL) + 1):
        plan = frontier(chain, 5 * 10**9, allow=ALL[:count])
        assert plan.makespan_s <= last
        last = plan.makespan_s
    assert last < frontier(chain, 5 * 10**9).makespan_s


def test_files_hold_variants():
    """Chains and graphs come back equal; faults are named by their field."""
    chain = build_workload(WorkloadOptions(layers=2, allow=ALL)).workload
    graph = build_workload(WorkloadOptions(layers=2, allow=ALL, granularity="op")).workload
    for workload in (chain, graph):
        assert from_dict(json.loads(json.dumps(to_dict(workload)))) == workload
    document = to_dict(chain)
    document["stages"][1]["variants"][0]["kind"] = "magic"
    with pytest.raises(InvalidWorkloadError, match=r"stages\[1\].variants\[0\].kind"):
        from_dict(document)
    document = to_dict(chain)
    document["stages"][0]["variants"][1]["name"] = document["stages"][0]["variants"][0]["name"]
    with pytest.raises(InvalidWorkloadError, match=r"stages\[0\].variants\[1\].name"):
        from_dict(document)


OPS = (
    Op("f", time_s=1, writes={"x": 100}),
    Op("g", time_s=1, reads=("x",), writes={"y": 100}),
    Op("loss", "loss", reads=("y",), writes={"d.y": 100}),
    Op("g'", "backward", time_s=2, reads=("d.y", "x"), writes={"d.x": 100}),
)
INT8 = GraphVariant(
    "int8 x",
    "quantize",
    (
        Op("enc", time_s=0.1, reads=("x",), writes={"x.8": 30}),
        Op("dec", "backward", time_s=0.1, reads=("x.8",), writes={"x.again": 100}),
    ),
    {"g'": {"x": "x.again"}},
)


def test_graphs_with_a_variant_are_plain_graphs():
    """Encoded at once, decoded for the first reader; the tensor itself is let go."""
    graph = Graph("g", OPS, variants=(INT8,))
    changed = resolve(graph, [ChosenVariant(INT8)])
    assert changed.op_names == ("f", "enc", "g", "loss", "dec", "g'")
    everything = simulate(changed, Schedule.store_all(changed))
    assert everything.memory_bytes.tolist() == [100, 130, 230, 230, 230, 300]
    assert workload_hash(graph) == workload_hash(Graph("g", OPS))


def test_variants_that_exclude_each_other_are_refused():
    """Two of one stage or tensor; an op that is not there; a tensor that is not read."""
    int8 = StageVariant("int8", "quantize", 8)
    chain = Chain("one", 4, (schedsim.Stage("s", 1, 2, 4, 20, variants=(int8,)),))
    with pytest.raises(SchedsimError, match="given two variants"):
        resolve(chain, [ChosenVariant(int8, "s")] * 2)
    other = GraphVariant("int4 x", "quantize", INT8.adds[:1], INT8.instead)
    graph = Graph("g", OPS, variants=(INT8,))
    with pytest.raises(SchedsimError, match="change the same tensor"):
        resolve(graph, [ChosenVariant(INT8), ChosenVariant(other)])
    with pytest.raises(InvalidWorkloadError, match=r"variants\[0\].instead: unknown op 'h'"):
        Graph("g", OPS, variants=(GraphVariant("v", "share", (), {"h": {"x": "y"}}),))
    with pytest.raises(InvalidWorkloadError, match="does not read 'z'"):
        Graph("g", OPS, variants=(GraphVariant("v", "share", (), {"g": {"z": "y"}}),))
    with pytest.raises(InvalidWorkloadError, match="unknown tensor 'z'"):
        Graph("g", OPS, variants=(GraphVariant("v", "share", (), {"g": {"x": "z"}}),))


def test_op_graphs_save_what_the_papers_count():
    """ReGELU2 and MS-LN: 34 becomes 23 s b h bytes a layer (Yang et al. 2024, in fp16)."""
    options = {"layers": 3, "attention": "flash", "granularity": "op", "hidden": 1024, "heads": 16}
    graph = build_workload(WorkloadOptions(**options, allow=ALL)).workload
    assert isinstance(graph, Graph)
    chosen = [ChosenVariant(v) for v in graph.variants if v.kind in ("approx", "share")]
    assert len(chosen) == 9

    def kept(workload: Graph, layer: str) -> int:
        read = {t for op in workload.ops if op.phase == "backward" for t in op.reads}
        made = [op for op in workload.ops if op.phase == "forward" and op.name.startswith(layer)]
        return sum(size for op in made for t, size in op.writes.items() if t in read)

    unit = 2048 * 1024
    stats = 4 * 16 * 2048
    assert kept(graph, "layer1.") - stats == 34 * unit
    assert kept(resolve(graph, chosen), "layer1.") - stats == 23 * unit


def test_kinds_are_text_as_on_the_command_line():
    """``allow="quantize"`` is not the letters q, u, a, ..."""
    stage = schedsim.Stage("s", 1, 2, 4, 20, variants=(StageVariant("int8", "quantize", 8),))
    plan = schedsim.plan(Chain("one", 4, (stage,)), 20, allow="quantize,approx")
    assert [c.label for c in plan.variants] == ["s: int8"]

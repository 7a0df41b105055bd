"""torch.compile: what its partitioner is told to save is what the schedule keeps."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
from small_exports import OPS

import schedsim
from schedsim import Schedule, simulate
from schedsim.export import export
from schedsim.export.to_torch_sac import aten_name

PEAK = simulate(OPS, Schedule.store_all(OPS)).peak_bytes
FORWARD = [op for op in OPS.ops if op.phase == "forward"]


def planned(share: float) -> schedsim.Plan:
    return schedsim.plan(OPS, int(share * PEAK), effort=0.2)


@pytest.fixture
def solver(monkeypatch):
    """The solver of generated code, beside a stand-in for torch's own class."""
    module = ModuleType("torch._inductor.custom_graph_pass")
    module.CustomKnapsackSolver = object
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def make(text: str):
        names: dict = {}
        exec(compile(text, "generated", "exec"), names)
        return names["SAVE"], names["Solver"]()

    return make


def node(name: str, target: str):
    return SimpleNamespace(name=name, target=SimpleNamespace(__name__=target))


@pytest.mark.parametrize("share", [1.0, 0.8])
def test_calls_stand_in_the_order_of_the_forward(solver, share):
    """Each forward op is a call of its kind; those that run once are saved."""
    exported = export(OPS, planned(share), "torch-compile")
    save, _ = solver(exported.text)
    names: dict[str, list[str]] = {}
    for op in FORWARD:
        names.setdefault(aten_name(op.name), []).append(op.name)
    assert {kind: len(calls) for kind, calls in save.items()} == {
        kind: len(ops) for kind, ops in names.items()
    }
    ran = exported.schedule.names
    for kind, calls in save.items():
        for kept, op in zip(calls, names[kind], strict=True):
            # What is saved never runs again; what is not may be needed by nobody.
            assert not kept or ran.count(op) == 1
    if share == 1.0:
        assert exported.exact
        assert all(ran.count(op.name) == 1 for op in FORWARD)
    else:
        assert exported.peak_bytes < PEAK
        assert not all(all(calls) for calls in save.values())


def test_the_solver_answers_for_what_it_is_asked(solver):
    """The second of three products is recomputed; others are saved, unknown ones too."""
    exported = export(OPS, planned(1.0), "torch-compile")
    text = exported.text.replace(
        next(line for line in exported.text.splitlines() if line.startswith("SAVE = ")),
        "SAVE = {'addmm': [True, False], 'attention': [False]}",
    )
    _, one = solver(text)
    nodes = [
        node("a", "addmm.default"),
        node("b", "mm.default"),  # called addmm where it has no bias
        node("c", "addmm.default"),
        node("d", "_scaled_dot_product_flash_attention.default"),
        node("e", "gelu.default"),
        node("f", "addmm.default"),
    ]
    graph = SimpleNamespace(nodes=nodes)
    candidates = [nodes[i] for i in (0, 1, 3, 4, 5)]
    saved, recomputed = one([1] * 5, graph, 0.5, None, candidates)
    # The third product counts though nobody asks for it; the fourth is not known to the plan.
    assert (saved, recomputed) == ([0, 3, 4], [1, 2])


def test_the_answer_is_cached_by_the_workload(solver):
    """Two workloads never share compiled code."""
    plan = planned(1.0)
    _, one = solver(export(OPS, plan, "torch-compile").text)
    assert one.uuid() == plan.workload.content_hash

"""Selective checkpointing: which calls of a layer are saved."""

from __future__ import annotations

import pytest
from small_exports import OPS, executed, loose

import schedsim
from schedsim import Schedule, simulate
from schedsim.export import export
from schedsim.export.choice import nearest
from schedsim.export.save_sets import as_choice, find_layers, layer_choices, layer_flips
from schedsim.export.to_torch_sac import ATEN, aten_name, render
from schedsim.workloads import WorkloadOptions, build_workload

MORE = build_workload(WorkloadOptions(preset="gpt2", layers=4, batch=8, granularity="op")).workload

pytest.importorskip("torch", reason="torch is not installed")


@pytest.mark.parametrize(
    ("kind", "name"),
    [("attention.qkv", "addmm"), ("h.mlp.gelu", "gelu"), ("x.mm#2", "mm"), ("mul", "mul")],
)
def test_kinds_are_called_as_aten_calls_them(kind, name):
    """By the last part; what the formula does not name has its own name."""
    assert aten_name(kind) == name
    assert aten_name(f"layer.{next(iter(ATEN))}") == ATEN[next(iter(ATEN))]


def test_calls_of_a_layer_in_order():
    """Two norms, four products with weights, two without; layer by layer its own policy."""
    layers = find_layers(OPS, "test")
    choice = as_choice(OPS, layers, layers.kinds, 2, (), (1, {"attention.qkv"}))
    names = executed(render(OPS, schedsim.plan(OPS, "100%", "store_all"), choice, 1))
    assert names["LAYERS"] == [0, 1]
    few, every = names["SAVE"]
    assert {op: len(calls) for op, calls in every.items()} == {
        "native_layer_norm": 2, "addmm": 4, "bmm": 2, "_softmax": 1, "native_dropout": 1,
        "add": 2, "gelu": 1,
    }  # fmt: skip
    assert all(all(calls) for calls in every.values())
    assert few["addmm"] == [True, False, False, False]
    assert not any(any(calls) for op, calls in few.items() if op != "addmm")


def test_nothing_is_checkpointed_where_memory_is_plenty():
    """Or every layer keeps all."""
    names = executed(loose("torch-sac", True).text)
    kept = [
        number is None or all(map(all, names["SAVE"][number].values()))
        for number in names["LAYERS"]
    ]
    assert kept == [True, True]


def test_policies_by_layer_are_never_worse_than_one_for_all():
    """And somewhere between all and nothing they are better."""
    layers = find_layers(MORE, "test")
    peak = simulate(MORE, Schedule.store_all(MORE)).peak_bytes
    better = 0
    for share in (0.7, 0.8, 0.9):
        plan = schedsim.plan(MORE, int(share * peak), effort=0.1)
        one, cost = nearest(
            MORE,
            plan,
            layer_choices(MORE, layers, plan),
            lambda choice: layer_flips(MORE, layers, choice),
        )
        both = export(MORE, plan, "torch-sac")
        assert both.makespan_s <= cost.makespan_s
        better += both.makespan_s < cost.makespan_s
        assert len(set(map(repr, one.data["sets"]))) <= 2
    assert better

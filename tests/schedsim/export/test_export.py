"""Exported plans: what each target gets parses, is what was simulated, and says what it costs."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace

import numpy as np
import pytest
import yaml

import schedsim
from schedsim import SchedsimError, UnsupportedError, simulate
from schedsim.cli.app import run
from schedsim.export import TARGETS, export
from schedsim.export.pipeline_stages import STAGE_TARGETS
from schedsim.export.segments import layer_range
from schedsim.plans.setting import StepChanges
from schedsim.workloads import WorkloadOptions, build_workload

GPT2 = build_workload(WorkloadOptions(preset="gpt2", batch=8)).workload
OPS = build_workload(WorkloadOptions(preset="gpt2", layers=4, batch=8, granularity="op")).workload


PLANS: dict[tuple[str, float], schedsim.Plan] = {}


def planned(workload, share: float):
    """`planned_anew`, once for each workload and share."""
    key = workload.kind, share
    if key not in PLANS:
        PLANS[key] = planned_anew(workload, share)
    return PLANS[key]


def planned_anew(workload, share: float):
    """The plan at a share of the way from little memory to that of store-all."""
    peak = simulate(workload, schedsim.Schedule.store_all(workload)).peak_bytes
    little = 0.45 * peak
    if workload.kind == "chain":
        little = min(point.budget_bytes for point in schedsim.pareto(workload).points)
    return schedsim.plan(workload, int(little + share * (peak - little)), effort=0.1)


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_reported_is_what_the_schedule_costs(target):
    """Peak and time are those of the schedule; whatever fits is no faster than an optimal plan."""
    for workload in (GPT2, OPS):
        if workload.kind not in TARGETS[target].kinds:
            with pytest.raises(UnsupportedError, match=f"does not take a {workload.kind}"):
                export(workload, planned(workload, 0.5), target)
            continue
        for share in (1.0, 0.6, 0.3):
            plan = planned(workload, share)
            exported = export(workload, plan, target)
            again = simulate(workload, exported.schedule)
            assert (exported.peak_bytes, exported.makespan_s) == (
                again.peak_bytes,
                again.makespan_s,
            )
            assert exported.text
            assert exported.fits == (exported.peak_bytes <= plan.budget_bytes)
            if exported.fits:
                assert exported.makespan_s >= plan.lower_bound_s * (1 - 1e-9)
            assert exported.fits or target in ("torch-compile", "maxtext")
            if share == 1.0 and target != "maxtext":  # it has no way to recompute nothing
                assert exported.exact
                assert exported.regret == 0


def test_an_expressible_plan_is_exported_exactly():
    """Single layers recomputed once: any subset can be said to transformers and torch."""
    plan = planned(GPT2, 0.4)
    for target in ("torch", "transformers", "jax"):
        exported = export(GPT2, plan, target)
        assert exported.makespan_s == pytest.approx(plan.makespan_s)
        assert exported.fits


def test_layers_are_the_stages_that_repeat():
    """Embedding and head are none; a chain without any is refused."""
    assert layer_range(GPT2) == range(1, 13)
    other = schedsim.Chain(
        "x", 1, tuple(schedsim.Stage(name, 1, 1, 1, 1) for name in ("one", "two", "three"))
    )
    plan = schedsim.plan(other, 10)
    with pytest.raises(UnsupportedError, match="none that repeat"):
        export(other, plan, "megatron")


def test_configurations_parse_and_say_what_was_chosen():
    """TOML, YAML, JSON and arguments, read by their own parsers."""
    plan = planned(GPT2, 0.4)
    titan = export(GPT2, plan, "torchtitan", version="0.2").text
    table = tomllib.loads(titan)["activation_checkpoint"]
    assert table["mode"] in ("full", "selective")
    everything = export(GPT2, planned(GPT2, 1.0), "torchtitan", version="0.2").text
    assert tomllib.loads(everything)["activation_checkpoint"] == {"mode": "none"}
    arguments = export(GPT2, plan, "megatron").text.split()
    settings = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert settings["--recompute-granularity"] == "full"
    assert settings["--recompute-method"] in ("block", "uniform")
    assert 1 <= int(settings["--recompute-num-layers"]) <= 12
    for some in (plan, planned(GPT2, 1.0)):
        assert yaml.safe_load(export(GPT2, some, "maxtext").text) == {"remat_policy": "full"}
    custom = yaml.safe_load(export(OPS, planned(OPS, 0.3), "maxtext").text)
    assert custom["remat_policy"] == "custom"
    assert set(custom.values()) - {"custom"} <= {"device", "remat"}
    segments = json.loads(export(GPT2, plan, "jax").text)["segments"]
    names: dict = {}
    exec(export(GPT2, plan, "torch").text, names)
    assert segments == [list(segment) for segment in names["SEGMENTS"]]


def test_on_the_command_line(tmp_path, capsys, monkeypatch):
    """A file and a report; what nobody can express is refused, a near miss suggested."""
    monkeypatch.chdir(tmp_path)
    model = ["--preset", "gpt2", "--batch", "8"]
    run(["plan", *model, "--mem", "5GB", "-o", "plan.json"])
    capsys.readouterr()
    assert run(["export", *model, "plan.json", "--to", "torch", "-o", "c.py"]) == 0
    assert "over the plan" in capsys.readouterr().out
    compile((tmp_path / "c.py").read_text(), "c.py", "exec")
    assert run(["export", *model, "plan.json", "--to", "megatron", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fits"] is True
    assert run(["export", *model, "plan.json", "--to", "torchtian"]) == 2
    assert "did you mean 'torchtitan'?" in capsys.readouterr().err
    assert run(["export", "--list"]) == 0
    assert "maxtext" in capsys.readouterr().out
    assert run(["export", *model, "plan.json"]) == 2
    run(["plan", *model, "--mem", "5GB", "--allow", "approx", "-o", "v.json"])
    if schedsim.load("v.json").variants:
        assert run(["export", *model, "v.json", "--to", "torch"]) == 2
        assert "variants" in capsys.readouterr().err


def linked(workload):
    """A plan that copies to the host."""
    peak = simulate(workload, schedsim.Schedule.store_all(workload)).peak_bytes
    plan = schedsim.plan(workload, int(0.8 * peak), "offload", link="pcie5", effort=0.2)
    assert any(name.startswith("d2h:") for name in plan.schedule.names)
    return plan


def changed(workload, **step):
    """A plan of a step that is not the one of the workload."""
    plan = planned(workload, 0.5)
    setting = replace(plan.setting, step=StepChanges("block", **step))
    return replace(plan, setting=setting)


KINDS = {
    "plain": lambda workload: planned(workload, 0.5),
    "link": linked,
    "allocator": lambda workload: schedsim.plan(
        workload, planned(workload, 0.6).budget_bytes, allocator="best-fit", effort=0.1
    ),
    "chunks": lambda workload: changed(workload, chunk={"head": 4}),
    "micro-batches": lambda workload: changed(workload, accumulate=4),
}
REFUSED = {
    "allocator": "the budget bounds what best-fit reserves",
    "chunks": "computes head in chunks",
    "micro-batches": "in 4 micro-batches",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workload", [GPT2, OPS], ids=["chain", "graph"])
def test_every_kind_of_plan_is_exported_or_refused_in_a_line(kind, workload):
    """All targets beside all kinds of plans: no option of a plan is dropped without a word."""
    plan = KINDS[kind](workload)
    for name, target in TARGETS.items():
        takes = workload.kind in target.kinds
        offloads = getattr(target.load(), "OFFLOADS", False)
        if takes and (kind == "plain" or (kind == "link" and offloads)):
            exported = export(workload, plan, name)
            assert exported.text
            assert exported.target == name
            continue
        expected = REFUSED.get(kind) or f"{name} does not take a {workload.kind}"
        if takes and kind == "link":
            expected = f"{name} copies nothing to the host"
        with pytest.raises(SchedsimError, match=expected) as caught:
            export(workload, plan, name)
        assert "\n" not in str(caught.value)
        assert caught.value.hint
        if takes and kind == "link":  # those that are named do take this workload
            others = caught.value.hint.partition("export to ")[2].split(", ")
            assert all(workload.kind in TARGETS[other].kinds for other in others)


def test_levels_of_memory_are_refused_by_every_target():
    """A plan whose checkpoints lie in a level of their own, with copies in its schedule."""
    twelve = {"forward_s": [1] * 12, "backward_s": [2] * 12}
    sizes = {"output_bytes": [4] * 12, "saved_bytes": [8] * 12}
    chain = schedsim.Chain.from_arrays("u", 4, **twelve, **sizes)
    plan = schedsim.plan(chain, 40, "hrevolve", levels=[(12, 0.1, 0.1)])
    assert set(plan.schedule.names) - set(chain.op_names)
    for name, target in TARGETS.items():
        expected = "memory levels" if "chain" in target.kinds else f"{name} does not take a chain"
        with pytest.raises(UnsupportedError, match=expected) as caught:
            export(chain, plan, name)
        assert caught.value.hint


def test_a_plan_of_a_pipeline_on_the_command_line(tmp_path, capsys, monkeypatch):
    """Each stage's own layers for those targets that take them; others are refused."""
    monkeypatch.chdir(tmp_path)
    made = ["pipeline", "--preset", "gpt2", "--layers", "4", "--stages", "2"]
    made += ["--micro-batches", "2", "--recompute", "layers", "-o", "pipe.json"]
    assert run(made) == 0
    capsys.readouterr()
    for target in TARGETS:
        code = run(["export", "pipe.json", "--to", target, "-o", f"{target}.py"])
        told = capsys.readouterr()
        if target in STAGE_TARGETS:
            assert code == 0
            assert "layers that run again, by stage: " in told.out
            assert "one number" in told.out
            compile((tmp_path / f"{target}.py").read_text(), target, "exec")
        else:
            assert code == 2
            assert f"{target} takes no plan for each stage of a pipeline" in told.err
            assert "hint: one of torchtitan, megatron, torch" in told.err
    assert run(["export", "pipe.json", "--to", "megatron", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["layers"]) == 2
    assert run(["export", "pipe.json", "--to", "megatron", "--framework-version", "0.19"]) == 2
    assert "does not go with a plan of a pipeline" in capsys.readouterr().err


def test_what_does_not_fit_says_by_how_much_and_what_would(tmp_path, capsys, monkeypatch):
    """Bytes where rounded sizes read alike; the budget that would do; targets that fit."""
    monkeypatch.chdir(tmp_path)
    run(["plan", "--layers", "96", "--mem", "8GB", "-o", "plan.json"])
    capsys.readouterr()
    assert run(["export", "plan.json", "--to", "transformers", "-o", "t.py"]) == 1
    told = capsys.readouterr().out
    assert "OVER the budget of 8.00 GB (7.45 GiB) by 2,732,032 bytes (2.73 MB)" in told
    assert "a budget of --mem 8002732032 has room for this" in told
    assert "the plan fits with --to torch or jax" in told
    run(["plan", "--layers", "96", "--mem", "8002732032", "-o", "plan.json"])
    assert run(["export", "plan.json", "--to", "transformers", "-o", "t.py"]) == 0


def test_infeasible_plans_have_nothing_to_export():
    """One line says so."""
    plan = schedsim.api.try_plan(GPT2, 10)
    with pytest.raises(SchedsimError, match="no schedule"):
        export(GPT2, plan, "torch")


def test_the_list_of_targets_is_a_document_too(capsys):
    """With --json, one document and no table."""
    assert run(["export", "--list", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {row["name"]: tuple(row["takes"]) for row in document["targets"]} == {
        target.name: target.kinds for target in TARGETS.values()
    }


def test_versions_of_frameworks():
    """Earlier spellings by their version; one that is not written for is refused."""
    plan = planned(GPT2, 0.4)
    assert "activation_checkpointing_enable" in export(GPT2, plan, "transformers").text
    older = export(GPT2, plan, "transformers", version="4")
    assert "gradient_checkpointing_enable" in older.text
    assert older.schedule == export(GPT2, plan, "transformers", version="5.23").schedule
    with pytest.raises(SchedsimError, match="version '3'") as caught:
        export(GPT2, plan, "transformers", version="3")
    assert caught.value.hint == "one of 5.23, 4"
    with pytest.raises(SchedsimError, match="torch is not written") as caught:
        export(GPT2, plan, "torch", version="1")
    assert "all versions take the same code" in caught.value.hint


def test_megatron_recomputes_modules_of_a_graph():
    """Any of the modules that a dense layer has, each as often as there are layers."""
    found = set()
    for share in (1.0, 0.6, 0.3):
        exported = export(OPS, planned(OPS, share), "megatron")
        words = exported.text.split()
        if words[0] == "#":
            assert exported.exact
            continue
        assert words[:3] == ["--recompute-granularity", "selective", "--recompute-modules"]
        modules = set(words[3:])
        assert modules <= {"core_attn", "layernorm", "mlp"}
        counts = [exported.schedule.names.count(f"layer{i}.mlp.up") for i in range(4)]
        assert counts == [2 if "mlp" in modules else 1] * 4
        found |= modules
    assert found


def test_the_interval_of_layers_is_said_where_there_is_one():
    """All layers are every first; others have none."""
    names: dict = {}
    for share in np.linspace(0.0, 0.9, 7):
        text = export(GPT2, planned(GPT2, float(share)), "transformers").text
        exec(text.replace("from transformers", "# from transformers"), names)
        chosen, every = names["CHECKPOINTED"], names["EVERY"]
        assert every is None or chosen == list(range(0, 12, every))
        assert chosen != list(range(12)) or every == 1

"""Every pair of options of every command is honoured or refused; none is dropped in silence."""

from __future__ import annotations

import json
import os
from itertools import combinations
from pathlib import Path

import pytest
from command_line import CHAIN, Watched, commands, options
from option_samples import SAMPLES, WORKLOAD, together, words

from schedsim import Chain, Schedule
from schedsim.cli.app import run
from schedsim.files.document import save
from schedsim.plans.links import Link, with_copies
from schedsim.workloads import WorkloadOptions, build_workload


@pytest.fixture
def watched(tmp_path, monkeypatch, capsys) -> Watched:
    """The command line in a folder with all the files that the samples name."""
    monkeypatch.chdir(tmp_path)
    save(CHAIN, "chain.json")
    names = Schedule.store_all(_formula()).names
    Path("runs.txt").write_text(" ".join([names[0], *names]))  # the first forward runs twice
    Path("times.json").write_text(json.dumps(_times()))
    for name, peak in (("report", 8), ("other", 9)):
        Path(f"{name}.json").write_text(json.dumps(_report(peak)))
    few = 'workloads = ["chain.json"]\nplanners = ["rotor"]\nbudgets = '
    for name, budget in (("experiment", "70%"), ("other", "90%")):
        Path(f"{name}.toml").write_text(f'{few}["{budget}"]\n')
    for name, toml in (("results", "experiment"), ("other", "other"), ("base", "experiment")):
        assert run(["sweep", f"{toml}.toml", "-o", f"{name}.jsonl"]) == 0
    row = json.loads(Path("base.jsonl").read_text())
    row |= {"status": "error", "error": {"type": "Broken", "message": "broken"}}
    Path("base.jsonl").write_text(json.dumps(row) + "\n")
    save(with_copies(CHAIN, d2h=Link(1 << 22), h2d=Link(1 << 22), tensors=["r1"]), "queues.json")
    assert run(["plan", "--layers", "4", "--mem", "1TB", "-o", "formula.json"]) == 0
    assert run(["plan", "chain.json", "--mem", "1TB", "-o", "plan.json"]) == 0
    pipe = ["pipeline", "--layers", "4", "--stages", "2", "--micro-batches", "4"]
    assert run([*pipe, "-o", "pipeline.json"]) == 0
    capsys.readouterr()
    return Watched(monkeypatch, tmp_path)


def _formula() -> Chain:
    built = build_workload(WorkloadOptions(layers=4)).workload
    assert isinstance(built, Chain)
    return built


def _times() -> dict[str, object]:
    """Measured times of the formula's stages: three times as long as the roofline's."""
    stages = {
        stage.name: {"forward_s": 3 * stage.forward_s, "backward_s": 3 * stage.backward_s}
        for stage in _formula().stages
    }
    return {"schema": "schedsim.times/1", "stages": stages}


def _report(peak: int) -> dict[str, object]:
    """What `plot validate` draws."""
    return {
        "schema": "schedsim.validation/1",
        "name": "a report",
        "timeline": {"predicted_bytes": [4, peak], "measured_bytes": [4, peak]},
        "predicted": {"peak_bytes": peak},
        "measured": {"peak_bytes": peak},
    }


@pytest.mark.skipif("EXPLORE" not in os.environ, reason="x")
def test_explore(watched, capsys):
    import time

    only = os.environ["EXPLORE"]
    lines = []
    for name, command in commands().items():
        if only != "all" and name not in only.split(","):
            continue
        assert set(options(command)) <= set(SAMPLES[name]) | set(), (
            name,
            set(options(command)) - set(SAMPLES[name]),
        )
        flags = options(command)
        t0 = time.time()
        cache = {}

        def see(given):
            key = str(sorted(given.items()))
            if key not in cache:
                cache[key] = watched.call([*name.split(), *words(given)], capsys)
            return cache[key]

        for a in flags:
            s, t = (
                see(together(name, a)),
                watched.call([*name.split(), *words(together(name, a))], capsys),
            )
            lines.append(f"{name} | {a} | code {s.code} {s.err.splitlines()[:1]}")
            if s != t:
                lines.append(f"   UNSTABLE {a}")
            if s.code == 2 and not s.refused:
                lines.append(f"   BADREFUSAL {s.err}")
        for a, b in combinations(flags, 2):
            if name not in ("plan", "simulate") and a in WORKLOAD and b in WORKLOAD:
                continue
            both = see(together(name, a, b))
            if both.refused or both.code == 2:
                lines.append(
                    f"{name} | {a} {b} | refused {'' if both.refused else 'BAD'} {both.err.splitlines()[:1]}"
                )
                continue
            for one in (a, b):
                if both == see(together(name, a, b, without=one)):
                    lines.append(
                        f"{name} | {a} {b} | IGNORED {one} code {both.code} {both.err.splitlines()[:1]}"
                    )
        lines.append(f"{name}: {len(cache)} calls in {time.time() - t0:.1f} s")
    Path("/tmp/explored.txt").write_text("\n".join(lines))

"""Every pair of options of every command is honoured or refused; none is dropped in silence."""

from __future__ import annotations

import contextlib
import json
import shutil
from itertools import combinations
from pathlib import Path

import pytest
from command_line import CHAIN, Seen, Watched, commands, options
from option_samples import CLUSTER, SAMPLES, WORKLOAD, Given, base, together, words
from option_table import refused_pairs
from tiers import slow_where

from schedsim import Chain, Schedule
from schedsim.cli.app import run
from schedsim.files.document import save
from schedsim.plans.links import Link, with_copies
from schedsim.workloads import WorkloadOptions, build_workload

COMMANDS = commands()
ALONE = ("planners", "env", "completion")
"""Commands of one option or argument."""
SLOW = ("cluster", "compare", "estimate", "pipeline", "plan", "plot frontier", "plot timeline")
"""Commands whose pairs, hundreds in some, take more than two seconds."""
WALKS_WORKLOADS = ("plan", "simulate")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    """A folder with all the files that the samples name."""
    folder = tmp_path_factory.mktemp("inputs")
    with contextlib.chdir(folder):
        _write_inputs()
    return folder


@pytest.fixture
def watched(inputs, tmp_path, monkeypatch, capsys) -> Watched:
    """The command line in a copy of that folder."""
    shutil.copytree(inputs, tmp_path, dirs_exist_ok=True)
    return Watched(monkeypatch, tmp_path)


def _write_inputs() -> None:
    save(CHAIN, "chain.json")
    names = Schedule.store_all(_formula()).names
    Path("runs.txt").write_text(" ".join([names[0], *names]))  # the first forward runs twice
    Path("times.json").write_text(json.dumps(_times()))
    for name, peak in (("report", 8), ("other", 9)):
        Path(f"{name}.json").write_text(json.dumps(_report(peak)))
    few = 'workloads = ["chain.json"]\nplanners = ["rotor"]\nbudgets = '
    for name, budget in (("experiment", "70%"), ("other", "90%")):
        Path(f"{name}.toml").write_text(f'{few}["{budget}"]\n')
    for name, toml in (("results", "experiment"), ("other", "other")):
        assert run(["sweep", f"{toml}.toml", "-o", f"{name}.jsonl"]) == 0
    row = json.loads(Path("results.jsonl").read_text())
    row |= {"status": "error", "error": {"type": "Broken", "message": "broken"}}
    Path("base.jsonl").write_text(json.dumps(row) + "\n")
    save(with_copies(CHAIN, d2h=Link(1 << 22), h2d=Link(1 << 22), tensors=["r1"]), "streams.json")
    assert run(["plan", "--layers", "4", "--mem", "1TB", "-o", "formula.json"]) == 0
    assert run(["plan", "chain.json", "--mem", "1TB", "-o", "plan.json"]) == 0
    pipe = ["pipeline", "--layers", "4", "--stages", "2", "--micro-batches", "4"]
    assert run([*pipe, "-o", "pipeline.json"]) == 0


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


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_has_a_sample(command):
    """A new option comes with one, and so with its pairs."""
    assert set(options(COMMANDS[command])) <= set(SAMPLES[command])


@pytest.mark.parametrize(
    "command",
    slow_where(
        [name for name in COMMANDS if name not in ALONE],
        lambda name: name in SLOW,
    ),
)
def test_every_pair_is_honoured_or_refused(command, watched, capsys):
    """What the table does not refuse shows: with either option left out, something differs.

    What shows is the output, the files, and what reaches the planner, the model or the picture.
    """
    seen: dict[str, Seen] = {}

    def see(given: Given) -> Seen:
        line = [*command.split(), *words(given)]
        key = " ".join(line)
        if key not in seen:
            seen[key] = watched.call(line, capsys)
        return seen[key]

    wrong = []
    refused = refused_pairs().get(command, frozenset())
    flags = options(COMMANDS[command])
    for pair in combinations(flags, 2):
        if command not in WALKS_WORKLOADS and set(pair) <= set(WORKLOAD):
            continue  # read by the same code as those of the commands that walk them
        if command == "plot pipeline" and "-o" not in pair:
            continue  # what `pipeline` walks
        if command.endswith("cluster") and set(pair) & set(CLUSTER):
            continue  # `test_cluster.py` looks at each of them
        both = see(together(command, *pair))
        if frozenset(pair) in refused:
            if not both.refused:
                wrong.append(f"{pair} is in the table of refusals: {both.code} {both.err}")
        elif both.code == 2:
            wrong.append(f"{pair} is not in the table of refusals: {both.err}")
        else:
            for one in pair:
                if see(together(command, *pair, without=one)) == both:
                    wrong.append(f"{pair}: {one} is dropped in silence")
    assert wrong == []


@pytest.mark.slow
def test_a_call_that_is_made_twice_shows_the_same(watched, capsys):
    """Else every difference would count as an option's effect."""
    for command in COMMANDS:
        if command not in ALONE:
            line = [*command.split(), *words(together(command, options(COMMANDS[command])[0]))]
            assert watched.call(line, capsys) == watched.call(line, capsys), command


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ALONE])
def test_an_option_without_what_it_needs_is_refused(command, watched, capsys):
    """Nothing that needs another option is dropped where that one is not there."""
    line = [*command.split(), *words(base(command))]
    without = watched.call(line, capsys)
    for option, one in SAMPLES[command].items():
        if one.needs and option in options(COMMANDS[command]):
            given = {**base(command), option: one.values}
            shown = watched.call([*command.split(), *words(given)], capsys)
            assert shown.refused or shown != without, option

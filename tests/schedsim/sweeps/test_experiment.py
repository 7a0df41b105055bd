"""Experiment files: what they say, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

import schedsim
from schedsim.api import try_plan
from schedsim.errors import SchedsimError
from schedsim.sweeps import expand, parse_budget, read_experiment
from schedsim.sweeps.execute import run_one

CHAIN = schedsim.Chain.from_arrays(
    "four", 4, forward_s=[1] * 4, backward_s=[2] * 4, output_bytes=[4] * 4, saved_bytes=[20] * 4
)
GRAPH = schedsim.Graph(
    "three",
    (
        schedsim.Op("a", time_s=1, writes={"x": 2}),
        schedsim.Op("b", time_s=1, reads=("x",), writes={"y": 2}),
        schedsim.Op("c", "backward", time_s=1, reads=("x", "y")),
    ),
)


@pytest.fixture
def read(tmp_path):
    """The experiment of a text."""

    def from_text(text: str):
        file = tmp_path / "e.toml"
        file.write_text(text)
        return read_experiment(file)

    return from_text


def test_workloads_are_as_on_the_command_line(read, tmp_path):
    """Presets, files beside the experiment, models, and tables whose lists multiply."""
    experiment = read(
        """
        budgets = ["8GB", "12.5%", 100]
        workloads = [
            "gpt2", "chain.json", "model:mlp,layers=2", "my.py:build,batch=4",
            {preset = "gpt2-xl", batch = [4, 8], tensor-parallel = [1, 2]},
            {name = "small", layers = 2, static = "1GB"},
            {target = "model:mlp", level = "op", device = "a100-80gb"},
        ]
        """
    )
    specs = experiment.workloads
    assert [spec.label for spec in specs] == [
        "gpt2",
        "chain.json",
        "model:mlp,layers=2",
        "my.py:build,batch=4",
        "preset=gpt2-xl, batch=4, tensor_parallel=1",
        "preset=gpt2-xl, batch=4, tensor_parallel=2",
        "preset=gpt2-xl, batch=8, tensor_parallel=1",
        "preset=gpt2-xl, batch=8, tensor_parallel=2",
        "small",
        "model:mlp, device=a100-80gb, level=op",
    ]
    assert specs[1].target == str(tmp_path / "chain.json")
    assert specs[2].target == "model:mlp,layers=2"
    assert specs[3].target == str(tmp_path / "my.py:build,batch=4")
    assert specs[7].options == {"preset": "gpt2-xl", "batch": 8, "tensor_parallel": 2}
    assert specs[8].options["static"] == 10**9
    assert (specs[9].level, specs[9].options) == ("op", {"device": "a100-80gb"})
    assert experiment.budgets == ("8GB", "12.5%", "100")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("workloads = [", "not TOML"),
        ("budgets = ['1GB']", "workloads: missing"),
        ("workloads = ['gpt2']", "budgets: missing"),
        ("workloads = []\nbudgets = ['1GB']", "not a list with at least one entry"),
        ("workloads = ['gpt2']\nbudgets = ['8G']", "budgets[0]: '8G' is ambiguous"),
        ("workloads = ['gpt2']\nbudgets = ['-5%']", "budgets[0]: '-5%' is not a share"),
        ("workloads = ['gpt2']\nbudgets = ['5%']\nplaner = ['auto']", "planer: unknown field"),
        ("workloads = [{prest = 'x'}]\nbudgets = ['5%']", "workloads[0].prest: unknown field"),
        ("workloads = [{layers = 'x'}]\nbudgets = ['5%']", "layers: 'x' is not of type int"),
        ("workloads = [{layers = true}]\nbudgets = ['5%']", "layers: True is not of type int"),
        ("workloads = ['gpt2', 'gpt2']\nbudgets = ['5%']", "two are called 'gpt2'"),
        ("workloads = ['gpt2']\nbudgets = ['5%']\nseeds = [-1]", "seeds[0]: -1 is not a seed"),
        ("workloads = ['gpt2']\nbudgets = ['5%']\nplanners = [3]", "planners[0]: 3 names no"),
        ("workloads = ['gpt2']\nbudgets = ['5%']\ntime_limit_s = 0", "time_limit_s: 0 is not"),
        ("workloads = ['gpt2']\nbudgets = ['5%']\nmax_moves = 1.5", "max_moves: 1.5 is not"),
    ],
)
def test_refusals_name_file_and_field(read, text, says):
    """One line, with the place."""
    with pytest.raises(SchedsimError) as caught:
        read(text)
    assert says in caught.value.message
    assert "e.toml: " in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("planner", "says"),
    [
        ('"rotr"', "unknown planner"),
        ('{name = "rotor", num_slot = 3}', "does not take num_slot"),
        ('{name = "local_search", seed = 3}', "has its own seed"),
    ],
)
def test_planners_are_checked_before_anything_runs(read, planner, says):
    """An unknown name or option ends the sweep at its start."""
    experiment = read(f'workloads = ["gpt2"]\nbudgets = ["50%"]\nplanners = [{planner}]')
    with pytest.raises(SchedsimError, match=says):
        expand(experiment, {"gpt2": CHAIN})


def test_shares_round_down():
    """A budget is never more than was asked for."""
    assert parse_budget("33.3%", 1000) == 333
    assert parse_budget("100 %", 92) == 92
    assert parse_budget("1KB", 92) == 1000


def test_runs_that_decide_the_same_are_one(read):
    """50 % of 92 bytes is 46 bytes; a planner without random choices has no seeds."""
    experiment = read(
        'workloads = ["gpt2", "other.json"]\nbudgets = ["50%", "46"]\nseeds = [0, 1]\n'
        'planners = ["rotor", "local_search"]'
    )
    runs, left_out = expand(experiment, {"gpt2": CHAIN, "other.json": GRAPH})
    found = [(run.label, run.budget, run.planner, run.seed) for run in runs]
    assert found == [
        ("gpt2", "50%", "rotor", None),
        *[("other.json", "50%", "local_search", seed) for seed in (0, 1)],
        *[("other.json", "46", "local_search", seed) for seed in (0, 1)],
    ]
    assert len({run.key for run in runs}) == 5
    assert left_out == [
        "local_search on gpt2: it does not take a chain",
        "rotor on other.json: it does not take a graph",
    ]


def test_runs_end_by_work_unless_seconds_are_asked_for(read):
    """Moves of annealings, effort of other searches; a time limit of one's own is a clock."""
    experiment = read(
        'workloads = ["g.json"]\nbudgets = ["90%"]\nmax_moves = 77\neffort = 3\n'
        'planners = ["auto", "cuts", "hierarchical", {name = "local_search", time_limit_s = 1}, '
        '"dtr", {name = "local_search", max_moves = 5, num_threads = 2}]'
    )
    runs, _ = expand(experiment, {"g.json": GRAPH})
    assert [(run.planner, run.by_clock) for run in runs] == [
        ("auto", False),
        ("cuts", False),
        ("hierarchical", False),
        ("local_search", True),
        ("dtr", False),
        ("local_search", False),
    ]
    assert runs[0].options == {"time_limit_s": 120.0, "max_moves": 77}
    assert runs[1].options == {"time_limit_s": 120.0, "effort": 3.0}
    assert runs[3].options == {"time_limit_s": 1}


@pytest.mark.slow
def test_an_interrupt_of_a_search_is_no_result(read, monkeypatch):
    """The plan so far would be taken for a finished row, and never be made again."""
    experiment = read('workloads = ["g.json"]\nbudgets = ["60%"]\nplanners = ["local_search"]')
    run = expand(experiment, {"g.json": GRAPH})[0][0]

    def interrupted(*args, **options):
        plan = try_plan(*args, **options)
        return replace(plan, search=replace(plan.search, ended_by="interrupt"))

    monkeypatch.setattr("schedsim.sweeps.execute.try_plan", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_one(run)

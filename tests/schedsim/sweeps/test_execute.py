"""Runs over processes by joblib: each result is in the file as soon as the run has ended."""

from __future__ import annotations

import numpy as np
import pytest
from training_graphs import random_training_graph

from schedsim.sweeps import expand, read_experiment
from schedsim.sweeps.execute import run_one


@pytest.fixture
def read(tmp_path):
    """The experiment of a text."""

    def from_text(text: str):
        file = tmp_path / "e.toml"
        file.write_text(text)
        return read_experiment(file)

    return from_text


def test_rows_say_what_ended_the_search(read):
    """The plan says it: ended by moves it is the same every time, by seconds it need not be."""
    graph = random_training_graph(np.random.default_rng(3), 24)
    experiment = read(
        'workloads = ["g.json"]\nbudgets = ["60%"]\nplanners = ['
        '{name = "local_search", max_moves = 50}, {name = "local_search", time_limit_s = 0.05}]'
    )
    runs, _ = expand(experiment, {"g.json": graph})
    rows = [run_one(run)[0] for run in runs]
    assert [(row["reproducible"], row["ended_by"] == "clock") for row in rows] == [
        (True, False),
        (False, True),
    ]

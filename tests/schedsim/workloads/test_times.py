"""Measured times from a file."""

from __future__ import annotations

import json

import pytest

from schedsim import InvalidWorkloadError
from schedsim.workloads import WorkloadOptions, build_workload

ONE_LAYER = {"layer0": {"forward_s": 1.5, "backward_s": 2.5}}


def build(folder, document, **options):
    """The workload with the times of `document`, written to a file in `folder`."""
    file = folder / "times.json"
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    return build_workload(WorkloadOptions(times_path=str(file), **options))


def test_they_replace_the_rooflines(tmp_path):
    """1.5 s + 2.5 s, and the assumptions name the file."""
    built = build(tmp_path, {"schema": "schedsim.times/1", "stages": ONE_LAYER}, layers=1)
    assert built.workload.store_all_s == 4
    assert "times.json" in built.assumptions[2]


def test_ops_have_one_time_each(tmp_path):
    """Half a second for each of the ops of a graph, the loss included."""
    options = {"layers": 1, "granularity": "op"}
    names = build_workload(WorkloadOptions(**options)).workload.op_names
    times = {"schema": "schedsim.times/1", "ops": dict.fromkeys(names, 0.5)}
    graph = build(tmp_path, times, **options).workload
    assert graph.store_all_s == 0.5 * len(names)


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ("{", "not JSON"),
        ({"stages": ONE_LAYER}, "schema: missing field"),
        ({"schema": "schedsim.times/2", "stages": ONE_LAYER}, "schema"),
        ({"schema": "schedsim.times/1", "stages": {}}, r"stages\.layer0"),
        ({"schema": "schedsim.times/1", "ops": {}}, "stages"),
        ({"schema": "schedsim.times/1", "stages": ONE_LAYER | {"x": {}}}, r"stages\.x"),
        (
            {"schema": "schedsim.times/1", "stages": {"layer0": {"forward_s": 1}}},
            r"stages\.layer0\.backward_s",
        ),
        (
            {
                "schema": "schedsim.times/1",
                "stages": {"layer0": {"forward_s": -1, "backward_s": 1}},
            },
            r"stages\.layer0\.forward_s",
        ),
    ],
)
def test_malformed_files_are_refused(tmp_path, document, says):
    """With the file's name and the path of the field."""
    with pytest.raises(InvalidWorkloadError, match=rf"times\.json: .*{says}"):
        build(tmp_path, document, layers=1)

"""Others' formats, on small files of our own in them, and on a copy where there is one."""

import json
from pathlib import Path

import pytest
from rematlib import FOLDER, script

import schedsim

convert = script("convert")

NODE_LINK = {
    "directed": True,
    "nodes": [
        {"name": "a", "backward": False, "cost_cpu": 3, "cost_ram": 10, "id": 0},
        {"name": "b_backward", "backward": True, "cost_cpu": 1, "cost_ram": 5, "id": 1},
        {"name": "c", "backward": False, "cost_cpu": 2, "cost_ram": 7, "id": 2},
    ],
    "links": [{"source": 0, "target": 1}, {"source": 2, "target": 1}, {"source": 0, "target": 2}],
}

DTR = """
{"INSTRUCTION": "ANNOTATE", "ANNOTATION": "START"}
{"INSTRUCTION": "CONSTANT", "NAME": "x"}
{"INSTRUCTION": "MEMORY", "NAME": "x", "MEMORY": "8"}
{"INSTRUCTION": "CALL", "NAME": "conv", "ARGS": ["x"], "RESULT": ["y", "v"], "TIME": "4"}
{"INSTRUCTION": "MEMORY", "NAME": "y", "MEMORY": "16"}
{"INSTRUCTION": "ALIAS", "NAME": "y", "ALIAS": "-1"}
{"INSTRUCTION": "MEMORY", "NAME": "v", "MEMORY": "8"}
{"INSTRUCTION": "ALIAS", "NAME": "v", "ALIAS": "0"}
{"INSTRUCTION": "COPY", "DST": "z", "SRC": "y"}
{"INSTRUCTION": "MUTATE", "NAME": "add_", "ARGS": ["y", "v"], "MUTATE": [0], "TIME": "2"}
{"INSTRUCTION": "ANNOTATE", "ANNOTATION": "BACKWARD"}
{"INSTRUCTION": "CALL", "NAME": "conv_backward", "ARGS": ["y", "z"], "RESULT": ["g"], "TIME": "5"}
{"INSTRUCTION": "MEMORY", "NAME": "g", "MEMORY": "8"}
{"INSTRUCTION": "ALIAS", "NAME": "g", "ALIAS": "-1"}
{"INSTRUCTION": "RELEASE", "NAME": "y"}
{"INSTRUCTION": "RELEASE", "NAME": "z"}
{"INSTRUCTION": "RELEASE", "NAME": "v"}
"""


def test_nodes_stand_in_an_order_that_runs(tmp_path, capsys):
    (tmp_path / "g.json").write_text(json.dumps(NODE_LINK))
    out = tmp_path / "out.json"
    assert convert.main(["node-link", str(tmp_path / "g.json"), "-o", str(out)]) == 0
    graph = schedsim.load(out)
    assert [op.name for op in graph.ops] == ["0.a", "2.c", "1.b_backward"]
    assert [op.phase for op in graph.ops] == ["forward", "forward", "backward"]
    assert graph.ops[2].reads == ("0.a:out", "2.c:out")
    assert graph.store_all_s == 6
    assert schedsim.plan(graph, 22).peak_bytes == 22
    assert "3 ops" in capsys.readouterr().out


def test_a_log_of_dtr_keeps_views_alive_and_gives_new_tensors_for_changed_ones():
    graph = convert.from_dtr(DTR, "log")
    assert dict(graph.inputs) == {"x": 8}
    assert [(op.name, op.phase, op.time_s) for op in graph.ops] == [
        ("0.conv", "forward", 4),
        ("1.add_", "forward", 2),
        ("2.conv_backward", "backward", 5),
    ]
    assert [dict(op.writes) for op in graph.ops] == [{"y": 16, "v": 0}, {"y'": 16}, {"g": 8}]
    assert graph.ops[1].reads == ("y", "v", "x")  # what the view looks at too
    assert graph.ops[2].reads == ("y'", "y")  # the copy is of what y was
    assert graph.results == ("g",)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("dtr", '{"INSTRUCTION": "JUMP"}'),
        ("dtr", "no json"),
        ("node-link", "{}"),
        (
            "node-link",
            json.dumps({**NODE_LINK, "links": [*NODE_LINK["links"], {"source": 1, "target": 0}]}),
        ),
    ],
)
def test_what_is_not_of_the_format_ends_with_a_line(kind, text, tmp_path, capsys):
    (tmp_path / "g.json").write_text(text)
    out = tmp_path / "out.json"
    assert convert.main([kind, str(tmp_path / "g.json"), "-o", str(out)]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert not out.exists()


def test_a_graph_of_moccasin_is_the_one_that_is_known():
    """As a converted copy has it: times, sizes and order."""
    known = Path(__file__).parents[3] / "shared/instances/dag/cm_fcn_8_vgg_train.json"
    if not known.is_file():
        pytest.skip("../shared/instances is not there")
    graph = schedsim.load(known)
    number = {op.name: i for i, op in enumerate(graph.ops)}
    producer = {tensor: op.name for op in graph.ops for tensor in op.writes}
    document = {
        "nodes": [
            {"id": i, "cost_cpu": op.time_s, "cost_ram": max(op.writes.values())}
            for i, op in enumerate(graph.ops)
        ],
        "links": [
            {"source": number[producer[tensor]], "target": i}
            for i, op in enumerate(graph.ops)
            for tensor in op.reads
        ],
    }
    made = convert.from_node_link(json.dumps(document), "again")
    everything = schedsim.Schedule.store_all
    ours, theirs = (schedsim.simulate(g, everything(g)) for g in (made, graph))
    assert (ours.peak_bytes, ours.makespan_s) == (theirs.peak_bytes, theirs.makespan_s)


def test_no_graph_of_others_is_kept():
    rows = json.loads((FOLDER / "index.json").read_text())["instances"]
    assert {*(next(iter(row["source"])) for row in rows)} <= {"family", "formula", "model"}

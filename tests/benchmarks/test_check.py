"""The stand-alone checker: what it accepts of the library, and what of it, spoilt, it rejects."""

import ast
import copy
import itertools
import json
import random
import subprocess
import sys

import pytest
from rematlib import FOLDER, script

from schedsim.cli.app import run

check = script("check")

# Instances of every kind of proof, small enough to be looked at in a second.
SAMPLES = (
    "random-chain-6-0",
    "heavy-chain-8-1",
    "blocks-chain-8-0",
    "unit-line-6-0",
    "residual-2-0",
    "layered-6-1",
    "layered-inference-10-0",
    "captured-gpt2-1",
)


def rows():
    return {row["name"]: row for row in check.read(FOLDER / "index.json")["instances"]}


def solutions(name):
    return check.read(FOLDER / "solutions" / f"{name}.json.gz")


def certificates(name):
    return solutions(name)["certificates"]


def test_it_stands_alone_in_five_hundred_lines():
    text = (FOLDER / "check.py").read_text()
    assert len(text.splitlines()) <= 500
    imported = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add((node.module or "").split(".")[0])
    assert imported <= sys.stdlib_module_names


def test_the_samples_are_right_without_anything_installed(tmp_path):
    """As a reader runs it: another interpreter, which sees no other package."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(FOLDER / "check.py"), *SAMPLES],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    best = [one for name in SAMPLES for one in rows()[name]["best"]]
    problems = len(best) + sum("any_schedule" in one for one in best)
    assert f"instances {len(SAMPLES)}, schedule {problems}, bound" in done.stdout
    assert "rejected 0" in done.stdout


@pytest.mark.slow
def test_what_is_claimed_is_what_the_index_says():
    """Nearly all claims of optimality have a proof; each row says what its certificates say."""
    claimed = proven = faster = 0
    for row in rows().values():
        known = solutions(row["name"])
        beyond = [one["any_schedule"] for one in row["best"] if "any_schedule" in one]
        for one, certificate in (
            *zip(row["best"], known["certificates"], strict=True),
            *zip(beyond, known.get("any_schedule", []), strict=True),
        ):
            assert one["budget_bytes"] == certificate["budget_bytes"]
            assert one["makespan_s"] == certificate["makespan_s"]
            assert one["status"] == certificate["status"]
            claimed += certificate["status"] == "optimal"
            proven += certificate["optimal"]
        faster += len(beyond)
    assert claimed > 500
    assert faster > 200
    readme = (FOLDER.parents[1] / "README.md").read_text()
    assert f"{proven:,} of {claimed:,} claims of optimality" in readme
    assert proven >= 0.8 * claimed


def spoilt(certificate, draw):
    """Ways to make a certificate say what is not so, each with a name."""

    def changed(**values):
        return {**copy.deepcopy(certificate), **values}

    names = certificate["schedule"]
    peak, budget = certificate["peak_bytes"], certificate["budget_bytes"]
    yield "schema", changed(schema="schedsim.certificate/2")
    yield "instance", changed(instance={**certificate["instance"], "content_hash": "sha256:0"})
    yield "peak", changed(peak_bytes=peak - 1)
    yield "peak as text", changed(peak_bytes=str(peak))
    yield "budget", changed(budget_bytes=peak - 1)
    yield "a budget below nothing", changed(budget_bytes=-budget)
    yield "time", changed(makespan_s=str(check.rational(certificate["makespan_s"]) - 1))
    yield "a time that is no number", changed(makespan_s="1/0")
    yield "gap", changed(gap="-1/7")
    yield "optimal", changed(optimal=not certificate["optimal"])
    yield "first run lost", changed(schedule=names[1:])
    yield "last run lost", changed(schedule=names[:-1])
    yield "a run more", changed(schedule=[*names, names[-1]])
    yield "an unknown op", changed(schedule=["nobody", *names])
    yield "backwards", changed(schedule=names[::-1])
    yield "no schedule", changed(schedule=None)
    place = draw.randrange(len(names) // 2)
    yield (
        "a run moved to the end",
        changed(schedule=names[:place] + names[place + 1 :] + [names[place]]),
    )
    if (bound := certificate["bound"]) is not None:
        higher = str(check.rational(bound["bound_s"]) + 1)
        yield "a higher bound", changed(bound={**bound, "bound_s": higher})
        yield "a lower bound", changed(bound={**bound, "bound_s": "1/3"})
        yield "a bound without a proof", changed(bound={**bound, "proof": {"kind": "trust"}})
        yield "another scope", changed(bound={**bound, "scope": "all that there is"})
        proof = bound["proof"]
        if proof["kind"] == "dynamic-programme":
            other = {**proof, "table_hash": "sha256:" + "0" * 64}
            yield "another table", changed(bound={**bound, "proof": other})
            yield "a scope too wide", changed(bound={**bound, "scope": "any schedule"})
        if proof["kind"] == "cut-tree":
            for what, tree in spoilt_trees(proof["tree"]):
                yield what, changed(bound={**bound, "proof": {**proof, "tree": tree}})
            yield "no cut", changed(bound={**bound, "proof": {**proof, "cuts": []}})
            yield (
                "an op that is none",
                changed(bound={**bound, "proof": {**proof, "cuts": ["nobody"]}}),
            )
    if (least := certificate["least"]) is not None:
        yield "a higher least", changed(least={**least, "bytes": peak + 1})


def spoilt_trees(tree):
    """A tree with multipliers that prove nothing; others may well prove as much: any are valid."""

    def leaves(node):
        if "branch" in node:
            yield from leaves(node["down"])
            yield from leaves(node["up"])
        else:
            yield node

    for what, change in (
        ("multipliers of nothing", lambda y: []),
        ("negative multipliers", lambda y: [[row, "-" + value] for row, value in y]),
        ("rows that are none", lambda y: [[row + 10**9, value] for row, value in y]),
        ("multipliers as floats", lambda y: [[row, float(value)] for row, value in y]),
    ):
        found = copy.deepcopy(tree)
        for leaf in leaves(found):
            leaf["y"] = change(leaf["y"])
        yield what, found
    if "branch" in tree:
        yield "half of the tree alone", tree["down"]
        yield "a variable that is none", {**tree, "branch": -1}


def spoilt_instances(document):
    """The instance with another number, its hash made right: what was proven is no longer so."""
    for what, factor in (("larger", 3), ("smaller", 0)):
        changed = copy.deepcopy(document)
        for stage in changed.get("stages", ()):
            for name in ("output_bytes", "saved_bytes"):
                stage[name] *= factor
        for op in changed.get("ops", ()):
            op["writes"] = {name: factor * size for name, size in op["writes"].items()}
        yield f"{what} tensors", changed
    changed = copy.deepcopy(document)
    for item in changed.get("stages", changed.get("ops")):
        for name in ("forward_s", "time_s"):
            if name in item:
                item[name] = item[name] + 1
    yield "other times", changed


@pytest.mark.slow
def test_more_than_a_hundred_spoilt_certificates_are_rejected():
    draw, kinds, count = random.Random(0), set(), 0
    for name in SAMPLES:
        document = check.read(FOLDER / rows()[name]["file"])
        instance = check.Instance(document)
        known = certificates(name)
        for certificate in (known[0], known[2]):
            check.verify(instance, certificate)
            for what, wrong in spoilt(certificate, draw):
                with pytest.raises(check.Rejected):
                    print(name, what, check.verify(instance, wrong))
                kinds.add(what)
                count += 1
        for what, other in spoilt_instances(document):
            wrong = check.Instance(other)
            claimed = {**certificate, "instance": {"content_hash": wrong.hash}}
            with pytest.raises(check.Rejected):
                print(name, what, check.verify(wrong, claimed))
            with pytest.raises(check.Rejected, match="another instance"):
                check.verify(wrong, certificate)
            kinds.add(what)
            count += 2
    assert count > 100
    assert len(kinds) > 25


def test_a_schedule_in_another_order_does_not_meet_a_bound_of_this_one():
    document = {
        "schema": "schedsim.graph/1",
        "name": "two",
        "ops": [
            {"name": name, "time_s": 1, "reads": [], "writes": {name: 4}} for name in ("a", "b")
        ],
    }
    instance = check.Instance(document)
    certificate = {
        "schema": "schedsim.certificate/1",
        "instance": {"content_hash": instance.hash},
        "budget_bytes": 9,
        "schedule": ["b", "a"],
        "peak_bytes": 4,
        "makespan_s": "2",
        "gap": "0",
        "optimal": True,
        "least": None,
        "bound": {"scope": check.ANY, "bound_s": "2", "proof": {"kind": "store-all"}},
    }
    assert check.verify(instance, certificate)["optimal"]
    certificate["bound"]["scope"] = check.FIXED
    with pytest.raises(check.Rejected, match="order"):
        check.verify(instance, certificate)


def test_a_step_faster_than_its_bound_is_none_of_the_class():
    """For a chain, a bound over persistent schedules proves nothing about a faster schedule."""
    name = "heavy-chain-8-1"
    instance, known = check.Instance(check.read(FOLDER / rows()[name]["file"])), solutions(name)
    beyond, persistent = known["any_schedule"][0], known["certificates"][0]
    assert check.rational(beyond["makespan_s"]) < check.rational(persistent["makespan_s"])
    assert check.verify(instance, beyond)["schedule"]
    gap = check.rational(beyond["makespan_s"]) / check.rational(persistent["makespan_s"]) - 1
    wrong = {**beyond, "bound": persistent["bound"], "gap": str(gap), "optimal": True}
    with pytest.raises(check.Rejected, match="faster than a bound over persistent schedules"):
        check.verify(instance, wrong)


@pytest.mark.parametrize(
    ("workload", "budget"),
    [(("--layers", "4"), "3500MB"), (("--layers", "4"), "1GB"), (("--preset", "gpt2"), "9GB")],
)
def test_the_command_line_writes_what_the_checker_takes(workload, budget, tmp_path, capsys):
    file = tmp_path / "c.json"
    code = run(("plan", *workload, "--mem", budget, "--certificate", str(file)))
    assert f"certificate     {file} proves " in capsys.readouterr().out
    content = json.loads(file.read_text())
    assert content["optimal"] == (code == 0)
    assert check.main([str(file)]) == 0


def test_the_command_line_refuses_what_it_cannot_certify(tmp_path, capsys):
    for more in (("--link", "pcie4"), ("--maximize", "batch"), ("--allocator", "best-fit")):
        file = str(tmp_path / "c.json")
        given = ("plan", "--preset", "gpt2", "--mem", "9GB", *more, "--certificate", file)
        assert run(given) == 2
        assert "--certificate does not go with" in capsys.readouterr().err
    assert run(("plan", "--layers", "4", "--mem", "9GB", "--certificate", "no/such/c.json")) == 2
    assert "--certificate no/such/c.json: folder no/such does not exist" in capsys.readouterr().err


def test_files_that_are_none_end_with_a_line(tmp_path, capsys):
    (tmp_path / "x.json").write_text("{")
    assert check.main([str(tmp_path / "x.json")]) == 2
    (tmp_path / "y.json").write_text("{}")
    assert check.main([str(tmp_path / "y.json")]) == 1
    assert check.main(["no such group"]) == 1
    assert "error:" in capsys.readouterr().err


def test_the_simulator_of_the_checker_is_the_simulator(tmp_path):
    """Random graphs with all that graphs have, and schedules with repeats."""
    import numpy as np
    from training_graphs import random_training_graph

    from schedsim import Schedule, simulate
    from schedsim.files.workload_files import workload_to_dict

    rng = np.random.default_rng(0)
    for _ in itertools.repeat(None, 60):
        graph = random_training_graph(rng, int(rng.integers(2, 9)))
        names = [op.name for op in graph.ops]
        once = {op.name for op in graph.ops if op.once}
        for place in sorted(rng.integers(1, len(names), 5).tolist(), reverse=True):
            again = names[int(rng.integers(0, place))]
            if again not in once:
                names.insert(place, again)
        theirs = simulate(graph, Schedule.from_names(names))
        peak, seconds = check.replay(check.make_graph(workload_to_dict(graph)), names)
        assert (peak, float(seconds)) == (theirs.peak_bytes, theirs.makespan_s)

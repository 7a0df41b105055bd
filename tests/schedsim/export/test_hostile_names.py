"""Names of workloads are data: no export runs them, whatever they are called."""

from __future__ import annotations

import ast
import io
import json
import tokenize
import tomllib
from dataclasses import replace

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

import schedsim
from schedsim import Graph, InvalidWorkloadError, Schedule, simulate
from schedsim.export import TARGETS, export, to_torch_sac
from schedsim.export.save_sets import INPUT, as_choice, find_layers
from schedsim.workloads import WorkloadOptions, build_workload

CHAIN = build_workload(WorkloadOptions(preset="gpt2", layers=4)).workload
GRAPH = build_workload(WorkloadOptions(preset="gpt2", layers=2, granularity="op")).workload
ATTACK = '""";__import__("os").system("touch owned")  # """'

# Ends of strings, docstrings, comments and lines in Python, TOML, YAML, JSON and the shell; format
# fields; letters that look like others or like ends of lines.
FRAGMENTS = (
    '"', "'", '"""', "'''", "\\", "\\\\", "{", "}", "{0}", "{name}", "{{", "%s", "#", "\n", "\r",
    "\r\n", "\x0b", "\x85", "\u2028", "\u2029", "\x00", "\x1b[31m", "\u202e", "$", "$(id)", "`id`",
    ";", "&&", "|", "*/", "-->", "</script>", "[[", "]]", "=", ": ", "- ", "&a", "!!python/name:os",
    "${HOME}", "__import__('os')", "print(1)", "\\N{DIGIT ONE}", "\\u0022",
    "\ud800", "e\u0301", "x",
)  # fmt: skip
hostile = st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=8).map("".join)


def store_all(workload):
    """The plan that recomputes nothing."""
    budget = simulate(workload, Schedule.store_all(workload)).peak_bytes
    return schedsim.plan(workload, budget, planner="store_all")


def renamed(workload, name: str):
    """`workload` called `name`, or ``None`` where such a name is refused."""
    try:
        if workload.kind == "chain":
            # The last stages, so that the first still are layers.
            stages = [*workload.stages[:-1], replace(workload.stages[-1], name=f"{name}9")]
            return replace(workload, name=name, stages=tuple(stages))
        ops = [
            replace(op, name=op.name.replace(".mlp.up", f".{name}")) for op in workload.ops
        ]  # of every layer the same: it stays a layer, and its op a kind
        return Graph(name, tuple(ops), dict(workload.inputs), workload.static_bytes)
    except InvalidWorkloadError:
        assert not name.isprintable()
        return None


def code_of(text: str) -> list[str]:
    """What Python would run or ignore of `text`: all but the constants of its assignments."""
    tree = ast.parse(text)
    kept = []
    for node in tree.body:
        if isinstance(node, ast.Assign):
            assert [type(target) for target in node.targets] == [ast.Name]
            ast.literal_eval(node.value)  # data: no call, no name
            kept.append(node.targets[0].id)
        else:
            for inner in ast.walk(node):
                if isinstance(inner, ast.FunctionDef) and inner.name == "uuid":
                    ast.literal_eval(inner.body[-1].value)
                    inner.body = []
            kept.append(ast.dump(node))
    comments = [
        token.string
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    ]
    return kept + comments


WORDS = {"none", "full", "custom", "device", "remat", "offload", "selective", "block", "uniform",
         "core_attn", "layernorm", "mlp"}  # fmt: skip


def checked(settings):
    """The keys of settings, whose values are numbers, switches and words of their framework."""
    if isinstance(settings, dict):
        return {key: checked(value) for key, value in settings.items()}
    if isinstance(settings, list):
        assert WORDS.issuperset(settings)
    else:
        assert settings is None or isinstance(settings, int) or settings in WORDS
    return None


def read(target: str, suffix: str, text: str):
    """The part of an exported file that no name may change."""
    if suffix == ".py":
        return code_of(text)
    if suffix == ".json":
        document = json.loads(text)
        return sorted(document), sorted(document.get("policy", ()))
    if suffix == ".toml":
        return sorted(tomllib.loads(text)["activation_checkpoint"])
    if suffix == ".yml":
        return checked(yaml.safe_load(text))
    return [line.split()[0] for line in text.splitlines()]


def check(target: str, name: str) -> None:
    """`target` writes the same code for `name` as for a harmless one."""
    for workload in (CHAIN, GRAPH):
        if workload.kind not in TARGETS[target].kinds:
            continue
        other = renamed(workload, name)
        if other is None:
            continue
        try:
            exported = export(other, store_all(other), target)
        except schedsim.UnsupportedError:
            continue  # no layers are left
        harmless = export(workload, store_all(workload), target)
        assert read(target, exported.suffix, exported.text) == read(
            target, harmless.suffix, harmless.text
        )


@pytest.mark.parametrize("target", TARGETS)
def test_a_name_that_ends_the_docstring_stays_a_name(target):
    """The workload's name closes a docstring and calls a function: it is written as data."""
    check(target, ATTACK)


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=examples(12), deadline=None)
@given(hostile)
def test_no_name_changes_the_code(target, name):
    """Quotes, ends of lines, backslashes, braces, comment ends and shell signs in every name."""
    check(target, name)


@settings(max_examples=examples(12), deadline=None)
@given(hostile)
def test_no_name_changes_code_that_copies(name):
    """The code of selective checkpointing that holds tensors in host memory, as the others."""
    other = renamed(GRAPH, name)
    if other is None:
        return
    texts = []
    for workload in (other, GRAPH):
        try:
            layers = find_layers(workload, "torch-sac")
        except schedsim.UnsupportedError:
            return
        choice = as_choice(workload, layers, layers.kinds, 2, {INPUT, *layers.kinds[:2]})
        texts.append(to_torch_sac.render(workload, store_all(workload), choice, 1))
    assert code_of(texts[0]) == code_of(texts[1])


@given(hostile)
def test_the_name_can_be_read_back(name):
    """What is written is the name itself, whatever its letters are."""
    other = renamed(CHAIN, name)
    if other is None:
        return
    space: dict[str, object] = {}
    exported = export(other, store_all(other), "transformers")
    for node in ast.parse(exported.text).body:
        if isinstance(node, ast.Assign):
            space[node.targets[0].id] = ast.literal_eval(node.value)
    assert space["WORKLOAD"] == name

"""Where a workload comes from: as a plan remembers it, and as a shell gives it again."""

from __future__ import annotations

import shlex

import pytest

from schedsim.cli.given.workload_source import Source
from schedsim.cli.options.formula import no_options
from schedsim.errors import SchedsimError
from schedsim.plans.source import WorkloadSource


def source(*files: str, level: str | None = None, **options) -> Source:
    return Source(files, no_options(options), level)


@pytest.mark.parametrize(
    ("given", "origin"),
    [
        (source(layers=4, head=True), WorkloadSource("formula", {"layers": 4, "head": True})),
        (source(synthetic="uniform", seed=0), WorkloadSource(
            "formula", {"synthetic": "uniform", "seed": 0})),
        (source("chain.json"), WorkloadSource("file", path="chain.json")),
        (source("chain.json", "plan.json"), WorkloadSource("file", path="chain.json")),
        (source("plan.json", "model:gpt2", level="op", device="cpu"),
         WorkloadSource("model", {"level": "op", "device": "cpu"}, target="model:gpt2")),
        (source("hf:gpt2"), WorkloadSource("model", {}, target="hf:gpt2")),
    ],
)  # fmt: skip
def test_what_a_plan_remembers(given, origin):
    """Only what was given; a model whatever stands beside it."""
    assert given.origin == origin


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (source("a b.json"), ["a b.json"]),
        (source(layers=4, head=True), ["--layers", "4", "--head"]),
        (source(layers=2, static=8 * 10**9), ["--layers", "2", "--static", "8GB"]),
        (source(layers=2, static="auto"), ["--layers", "2", "--static", "auto"]),
        (source(layers=2, efficiency=0.12345678), ["--layers", "2", "--efficiency", "0.12345678"]),
        (source("my model.py:build", level="op", device="cpu"),
         ["my model.py:build", "--level", "op", "--device", "cpu"]),
        (source(synthetic="uniform", seed=0), ["--synthetic", "uniform", "--seed", "0"]),
    ],
)  # fmt: skip
def test_the_words_that_give_it_again(given, words):
    """A shell takes them apart into the very same, in whatever order."""
    found = shlex.split(given.arguments())
    assert sorted(found) == sorted(words)
    assert found[: len(given.files)] == list(given.files)


def test_flags_of_what_was_given():
    """A seed of 0 was given; a switch that is off was not."""
    given = source("x", layers=0, head=False, seed=0, level="op")
    assert given.given_flags() == {"--layers": 0, "--seed": 0, "--level": "op"}


def test_the_formula_and_its_absence():
    """A file and a model have none; a device alone is where a model runs."""
    formula = source(layers=3, dtype="bf16").formula()
    assert (formula.layers, formula.dtype, formula.allow) == (3, "bf16", ())
    assert source("chain.json").formula() is None
    assert source("model:gpt2", device="cpu").formula() is None
    assert not source("chain.json").is_model
    with pytest.raises(SchedsimError, match="both a model and --batch are given") as caught:
        source("model:gpt2", device="cpu", batch=4).formula()
    assert "model:resnet50,batch=4" in caught.value.hint

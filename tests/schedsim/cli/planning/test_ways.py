"""The ways of a model: what the command hands on, writes and prints; no model is run here."""

from __future__ import annotations

import json
import sys
from types import ModuleType

import pytest
from command_line import Outcome, plain_plan
from four_stages import CHAIN

import schedsim
from schedsim.plans.source import WorkloadSource

MODEL = "model:mlp,layers=4"


class Way:
    """A priced way, as far as the command looks at it."""

    def to_dict(self) -> dict[str, str]:
        return {"name": "chunks"}


@pytest.fixture
def asked(monkeypatch, folder) -> dict:
    """What the planner of ways is asked for; it answers with a plan of four stages."""
    seen: dict = {}

    def plan_target(text, budget, **given):
        seen.update(given, text=text, budget=budget)
        return Outcome(CHAIN, plain_plan(CHAIN, 10**6), ("a line",), (Way(),))

    module = ModuleType("schedsim.validation.ways.commands")
    module.plan_target = plan_target
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("schedsim.cli.planning.ways.need_torch", lambda: None)
    return seen


def test_everything_that_is_asked_for_is_handed_on(asked, call):
    """Micro-batches, chunks, the planner and its options, the link and host memory."""
    line = (
        f"plan {MODEL} --mem 2GB --accumulate 4 --chunk head=2 --ways --planner offload "
        "--effort 3 --link 25GB/s --host-mem 1GB --host-latency 10us --level op --device cpu"
    )
    code, out, err = call(line)
    assert code == 0, err
    assert asked["text"] == MODEL
    assert asked["budget"] == 2 * 10**9
    assert (asked["accumulate"], asked["chunk"], asked["price_all"]) == (4, {"head": 2}, True)
    assert (asked["planner"], asked["options"]) == ("offload", {"effort": 3.0})
    assert (asked["level"], asked["device"], asked["host_bytes"]) == ("op", "cpu", 10**9)
    assert [link.latency_s for link in asked["offload"]] == [1e-5, 1e-5]
    assert {link.bytes_per_s for link in asked["offload"]} == {25 * 10**9}
    assert out.startswith("a line\n\nplan ")


def test_without_a_link_nothing_is_offloaded(asked, call):
    """And by blocks, unless another level is asked for."""
    assert call(f"plan {MODEL} --mem 50% --ways")[0] == 0
    assert (asked["offload"], asked["host_bytes"], asked["level"]) == (None, None, "block")
    assert (asked["budget"], asked["accumulate"], asked["chunk"]) == ("50%", None, None)


def test_the_document_has_the_ways_and_the_file_the_model(asked, call):
    """The plan remembers what it was captured from; the next step is a call."""
    code, out, err = call(f"plan {MODEL} --mem 2GB --ways --json -o plan.json")
    assert (code, err) == (0, "a line\n")
    assert json.loads(out)["ways"] == [{"name": "chunks"}]
    source = schedsim.load("plan.json").workload.source
    assert source == WorkloadSource("model", {}, target=MODEL)
    out = call(f"plan {MODEL} --mem 2GB --ways -o plan.json")[1]
    assert "schedsim.apply(model, 'plan.json', inputs, loss)" in out


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("chain.json --ways", "--accumulate, --chunk and --ways are for real models"),
        (f"{MODEL} chain.json --ways", "--accumulate, --chunk and --ways are for real models"),
        (f"{MODEL} --layers 3 --ways", "both a model and --layers"),
        (f"{MODEL} --ways --allow quantize", "--allow does not go with --ways"),
        (f"{MODEL} --accumulate ²", "--accumulate ² is not understood"),
    ],
)
def test_what_is_refused(asked, call, line, says):
    """And nothing is asked of the planner."""
    code, out, err = call(f"plan {line} --mem 2GB")
    assert (code, out, asked) == (2, "", {})
    assert says in err

"""Names of workloads are shown as they are: in figures, traces, pages and tables."""

from __future__ import annotations

import html.parser
import io
import json
import sys
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

import schedsim
from schedsim import Chain, Graph, Op, Schedule, simulate
from schedsim.cli.show import print_table
from schedsim.figures.gantt import draw_gantt
from schedsim.figures.plot import draw_pareto, draw_schedule, draw_timeline
from schedsim.simulation.trace import trace_document

ATTACK = "</title><script>alert(1)</script>$\\frac{$ [bold]x[/red] :smile: & \"'"
hostile = st.lists(
    st.sampled_from(["$", "\\", "$$", "_", "^", "{", "}", "\\frac", "<b>", "&", "[/x]", "%", "a"]),
    min_size=1,
    max_size=6,
).map("".join)


def named(name: str) -> Graph:
    """Two ops and a tensor called `name`."""
    ops = (
        Op(name, time_s=1, writes={name: 8}),
        Op(f"{name}'", phase="backward", time_s=1, reads=(name,)),
    )
    return Graph(name, ops)


def texts_of(figure) -> set[str]:
    """What stands in the picture: the text that matplotlib puts into the file."""
    import matplotlib

    file = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        figure.savefig(file, format="svg")
    root = ET.fromstring(file.getvalue())  # it parses: nothing of a name is markup
    assert not [node for node in root.iter() if node.tag.endswith(("script", "}b"))]
    return {"".join(node.itertext()) for node in root.iter() if node.tag.endswith("}text")}


@pytest.mark.slow
@settings(max_examples=examples(8), deadline=None)
@given(hostile)
def test_no_name_is_a_formula_in_a_figure(name):
    """A pair of dollar signs would be typeset, or fail, if it were read."""
    graph = named(name)
    simulation = simulate(graph, Schedule.store_all(graph))
    assert any(f"({name})" in text or f"({name}')" in text
               for text in texts_of(draw_timeline(simulation)))  # fmt: skip
    assert name in texts_of(draw_schedule(graph, simulation))
    assert any(text.startswith(f"{name}:") for text in texts_of(draw_gantt(simulation)))


def test_the_titles_of_curves_are_names():
    """The curve of a chain with a formula in its name."""
    chain = Chain.from_arrays(
        "$a$<b>", 1, forward_s=[1], backward_s=[1], output_bytes=[1], saved_bytes=[1]
    )
    assert "$a$<b>" in texts_of(draw_pareto([schedsim.pareto(chain)]))


@settings(max_examples=examples(25), deadline=None)
@given(hostile)
def test_traces_carry_names_as_text(name):
    """The trace is JSON, and its slices are called as the ops are."""
    simulation = simulate(named(name), Schedule.store_all(named(name)))
    document = json.loads(json.dumps(trace_document(simulation)))
    slices = [event["name"] for event in document["traceEvents"] if event["ph"] == "X"]
    assert slices == [name, f"{name}'"]


class Tags(html.parser.HTMLParser):
    """The texts of the titles and headings of a page, and how many scripts it has."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts, self.inside, self.texts = 0, "", {"title": "", "h1": ""}

    def handle_starttag(self, tag, attrs):
        self.scripts += tag == "script"
        self.inside = tag

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside in self.texts:
            self.texts[self.inside] += data


def test_a_report_runs_no_name():
    """A name with tags adds no script to the page, and its title shows the name."""
    pytest.importorskip("bokeh", reason="the extra report is not installed")
    from schedsim.figures.report import report

    pages = []
    for name in ("harmless", ATTACK):
        graph = named(name)
        plan = schedsim.plan(graph, 100)
        tags = Tags()
        tags.feed(report(graph, plan, assumptions=[name]))
        pages.append(tags)
    assert pages[0].scripts == pages[1].scripts
    for where in ("title", "h1"):
        assert pages[1].texts[where].startswith(ATTACK)


def test_tables_on_a_terminal_show_names_as_they_are(monkeypatch):
    """Brackets in names are no styles, and no fault: [/red] would close what is not open."""

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")
    print_table(("name", "size"), [(ATTACK, "1 B")])
    assert ATTACK in screen.getvalue()

"""``plot pipeline``: the step that is drawn is that of the plan, or nothing is drawn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import schedsim.figures.plot_pipeline
from schedsim.cli.plot import pipeline_picture

PIPE = "pipeline chain.json --stages 2 --micro-batches 4"


@pytest.fixture
def drawn(monkeypatch, folder) -> list:
    """The runs that are drawn."""
    seen: list = []
    monkeypatch.setattr(
        schedsim.figures.plot_pipeline, "draw_pipeline", lambda run: seen.append(run)
    )
    monkeypatch.setattr(pipeline_picture, "write_picture", lambda figure, out: Path(out).touch())
    return seen


def test_the_plan_is_drawn(drawn, call):
    """Made, or replayed from the file that `pipeline` wrote: the same step."""
    assert call(f"{PIPE} --mem 60% -o plan.json")[0] == 0
    step = json.loads(Path("plan.json").read_text())["step"]
    for line in (f"plot {PIPE} --mem 60% -o x.svg", "plot pipeline --replay plan.json -o x.svg"):
        assert call(line)[0] == 0
        run = drawn.pop()
        assert (run.makespan_s, run.peak_bytes) == (step["makespan_s"], step["peak_bytes"])


def test_a_step_that_does_not_fit_is_drawn_where_there_is_one(drawn, call):
    """A fixed way has a step whether it fits or not; a planner has none, and no file is made."""
    code, _, err = call(f"plot {PIPE} --mem 1 --recompute none -o x.svg")
    assert code == 1
    assert len(drawn) == 1
    assert "does not fit in 1 B per device" in err
    Path("x.svg").unlink()
    code, _, err = call(f"plot {PIPE} --mem 1 -o x.svg")
    assert (code, len(drawn)) == (1, 1)
    assert "the least found to fit is" in err
    assert not Path("x.svg").exists()


def test_refused_before_anything_is_planned(drawn, call, monkeypatch):
    """The suffix comes first, then what lacks."""
    monkeypatch.setattr(pipeline_picture, "planned", pytest.fail)
    code, _, err = call(f"plot {PIPE} -o x.gif")
    assert code == 2
    assert "cannot draw '.gif'" in err
    monkeypatch.undo()
    assert call("plot pipeline chain.json --stages 2 -o x.svg")[0] == 2

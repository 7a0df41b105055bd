"""What notebooks show: words and a picture, with names as text, and matplotlib loaded only then."""

from __future__ import annotations

import base64
import html
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import schedsim
from schedsim.figures.notebook import _grid

ROOT = Path(__file__).parents[2]
HOSTILE = '<script>alert("x")</script>'
CHAIN = schedsim.Chain.from_arrays(
    HOSTILE, 4, forward_s=[1] * 6, backward_s=[2] * 6, output_bytes=[4] * 6, saved_bytes=[10] * 6
)


def shown() -> dict[str, object]:
    """One of each class; the simulation also with copies, on three streams."""
    plan = schedsim.plan(CHAIN, 50)
    copied = schedsim.plan(CHAIN, 50, link="16B/s", effort=0.02)
    return {
        "chain": CHAIN,
        "graph": CHAIN.graph,
        "plan": plan,
        "simulation": schedsim.simulate(CHAIN, plan),
        "copies": schedsim.simulate(CHAIN, copied),
        "curve": schedsim.pareto(CHAIN),
    }


@pytest.mark.slow
def test_each_has_words_and_a_picture():
    """A png of some size, after the object in words; names cannot leave their text."""
    for name, one in shown().items():
        text = one._repr_html_()
        assert HOSTILE not in text, name
        assert html.escape(HOSTILE) in text, name
        image = re.search(r'src="data:image/png;base64,([^"]+)"', text)
        assert image is not None, name
        data = base64.b64decode(image[1])
        assert data.startswith(b"\x89PNG"), name
        width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
        assert 300 < width < 2000, name
        assert 200 < height < 2000, name


def test_the_same_object_gives_the_same_page():
    """No dates and no random ids: notebooks under version control stay as they are."""
    assert CHAIN._repr_html_() == CHAIN._repr_html_()


def test_an_infeasible_plan_and_an_empty_curve_have_words_alone():
    """There is nothing to draw."""
    infeasible = schedsim.compare(CHAIN, 1, ["rotor"])[0]
    assert "<img" not in infeasible._repr_html_()
    assert "infeasible" in infeasible._repr_html_()
    assert "<img" not in replace(schedsim.pareto(CHAIN), points=())._repr_html_()


def test_the_grid_of_a_plan():
    """Ops as rows, runs as columns: 1 where an op runs first, 2 where it runs again."""
    assert _grid(np.array([0, 1, 0], np.int32), 2).tolist() == [[1, 0, 2], [0, 1, 0]]
    # 4,000 runs share 800 columns; no repeat is lost.
    runs = np.concatenate([np.arange(2000), np.arange(2000)]).astype(np.int32)
    large = _grid(runs, 2000)
    assert large.shape == (800, 800)
    assert (large[:, :400] == 2).sum() == 0
    assert (large[:, 400:] == 2).any(axis=0).all()


@pytest.mark.slow
@pytest.mark.parametrize("num_stages", [1, 3000])
def test_one_stage_and_very_many(num_stages):
    """Both ends draw."""
    ones = [1] * num_stages
    chain = schedsim.Chain.from_arrays(
        "n", 1, forward_s=ones, backward_s=ones, output_bytes=ones, saved_bytes=[2] * num_stages
    )
    assert "<img" in chain._repr_html_()
    assert "<img" in schedsim.simulate(chain, schedsim.Schedule.store_all(chain))._repr_html_()

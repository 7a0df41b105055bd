"""What notebooks ask for: a page, made of the object, with figures loaded only then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import schedsim.figures.notebook
from schedsim.dataflow.shown_in_notebooks import ShownInNotebooks

ROOT = Path(__file__).parents[3]


def test_the_page_is_that_of_the_object_itself(monkeypatch):
    """Whatever class asks."""

    class Shown(ShownInNotebooks):
        pass

    one = Shown()
    monkeypatch.setattr(schedsim.figures.notebook, "page", lambda shown: f"<p>{shown is one}</p>")
    assert one._repr_html_() == "<p>True</p>"


def test_who_inherits_may_have_slots():
    """The class adds no dict to what it is mixed into."""

    class Slotted(ShownInNotebooks):
        __slots__ = ("x",)

    with pytest.raises(AttributeError):
        Slotted().y = 1


@pytest.mark.slow
def test_matplotlib_is_loaded_only_then():
    """Not with schedsim, and not with a plan."""
    code = (
        "import sys, schedsim; "
        "c = schedsim.Chain.from_arrays('n', 1, forward_s=[1], backward_s=[1], output_bytes=[1], "
        "saved_bytes=[1]); p = schedsim.plan(c, 99); print('matplotlib' in sys.modules); "
        "p._repr_html_(); print('matplotlib' in sys.modules, 'matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        cwd=ROOT,
    )
    assert done.stdout.split() == ["False", "True", "False"]

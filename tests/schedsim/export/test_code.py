"""Code that is written for others to run: a template of ours, and data in it as literals."""

from __future__ import annotations

import pytest

from schedsim.export.code import fill


def test_code_takes_data_alone():
    """A value that is no literal, or a text whose letters would be taken for a line, is refused."""
    assert (
        fill("A = {a}\n", a={"x\u2028": [True, None, 1.5]})
        == "A = {'x\\u2028': [True, None, 1.5]}\n"
    )
    with pytest.raises(TypeError):
        fill("A = {a}\n", a=object())
    with pytest.raises(TypeError):
        fill("A = {a}\n", a=float("inf"))

"""The options of a formula: every field has one, and none is without a field."""

from __future__ import annotations

from dataclasses import fields

import pytest

from schedsim.cli.given.workload_source import Source
from schedsim.cli.options.formula import (
    OPTIONS,
    SWITCHES,
    fields_without_options,
    flags,
    no_options,
)
from schedsim.workloads import WorkloadOptions


def test_every_field_of_a_formula_can_be_given():
    """And every option sets a field; a flag and a field stand once."""
    assert fields_without_options() == []
    known = {field.name for field in fields(WorkloadOptions)}
    assert set(flags()) <= known
    listed = [field for _, field, *_ in (*OPTIONS, *SWITCHES)]
    assert len(set(listed)) == len(listed) == len(flags()) - 1  # --static stands by itself
    assert len(set(flags().values())) == len(flags())


def test_a_field_without_an_option_is_found(monkeypatch):
    """So that a new field is not forgotten."""
    monkeypatch.setattr("schedsim.cli.options.formula.OPTIONS", OPTIONS[1:])
    assert fields_without_options() == [OPTIONS[0][1]]


@pytest.mark.parametrize("given", [{}, {"layers": 3}, {"head": True, "static": "auto"}])
def test_what_is_not_given_is_as_click_leaves_it(given):
    """Nothing, and switches off: the source then has what was given alone."""
    options = no_options(given)
    assert set(options) == set(flags())
    assert Source((), options).given == given
    assert {options[field] for _, field, _ in SWITCHES} <= {True, False}

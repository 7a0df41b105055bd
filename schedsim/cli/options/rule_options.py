"""``--keep`` and ``--recompute``: ops that must not run again, and ops that must."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any

import click

from ...dataflow.recomputation_rules import RecomputationRules

FLAGS = {"keep": "--keep", "recompute": "--recompute"}


def rule_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--keep`` and ``--recompute``, each repeated for several patterns."""
    for option in (
        click.option(
            "--recompute",
            "recompute_patterns",
            multiple=True,
            metavar="PATTERN",
            help="Stages, modules or ops not kept for the backward; * is a wildcard; repeatable.",
        ),
        click.option(
            "--keep",
            multiple=True,
            metavar="PATTERN",
            help="Stages, modules or ops that must not run again; * is a wildcard; repeatable.",
        ),
    ):
        function = option(function)
    return function


def take_rules(given: Mapping[str, Any]) -> dict[str, Any]:
    """``keep`` and ``recompute`` of `given`, as `schedsim.plan` takes them; absent if not given."""
    rules = RecomputationRules.of(given["keep"], given["recompute_patterns"])
    found = {"keep": list(rules.keep), "recompute": list(rules.recompute)}
    return {name: patterns for name, patterns in found.items() if patterns}


def rule_facts(rules: RecomputationRules) -> list[tuple[str, str]]:
    """The rows that show the rules of a plan; none without rules."""
    rows = (("kept", rules.keep), ("recomputed", rules.recompute))
    return [(f"{name} as asked", ", ".join(patterns)) for name, patterns in rows if patterns]


def rule_words(options: Mapping[str, Any]) -> list[str]:
    """The shell arguments that describe `options`."""
    return [
        word
        for name, flag in FLAGS.items()
        for pattern in options.get(name, ())
        for word in (flag, shlex.quote(pattern))
    ]

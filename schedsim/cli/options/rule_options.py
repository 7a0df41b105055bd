"""The options ``--keep`` and ``--recompute``: what must not run again, and what must."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any

import click

from ...dataflow.recomputation_rules import RecomputationRules

FLAGS = {"keep": "--keep", "recompute": "--recompute"}


def rule_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--keep`` and ``--recompute``, each as often as there are patterns."""
    for option in (
        click.option(
            "--recompute",
            "recompute_patterns",
            multiple=True,
            metavar="PATTERN",
            help="Stages, modules or ops, with *, not to be kept for the backward; repeatable.",
        ),
        click.option(
            "--keep",
            multiple=True,
            metavar="PATTERN",
            help="Stages, modules or ops, with *, that shall not run again; repeatable.",
        ),
    ):
        function = option(function)
    return function


def take_rules(given: Mapping[str, Any]) -> dict[str, Any]:
    """``keep`` and ``recompute`` of `given`, as `schedsim.plan` takes them; those given alone."""
    rules = RecomputationRules.of(given["keep"], given["recompute_patterns"])
    found = {"keep": list(rules.keep), "recompute": list(rules.recompute)}
    return {name: patterns for name, patterns in found.items() if patterns}


def rule_facts(rules: RecomputationRules) -> list[tuple[str, str]]:
    """The rows that say what a plan was asked to hold to; none where that is nothing."""
    rows = (("kept", rules.keep), ("recomputed", rules.recompute))
    return [(f"{name} as asked", ", ".join(patterns)) for name, patterns in rows if patterns]


def rule_words(options: Mapping[str, Any]) -> list[str]:
    """The arguments that give `options` again, for a shell."""
    return [
        word
        for name, flag in FLAGS.items()
        for pattern in options.get(name, ())
        for word in (flag, shlex.quote(pattern))
    ]

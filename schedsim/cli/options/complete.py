"""Completions that the shell offers for a value: planners, presets, choices, files."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _one_of(names: Callable[[], Iterable[str]]) -> Complete:
    def complete(
        ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(name) for name in names() if name.startswith(incomplete)]

    return complete


def _planners() -> list[str]:
    from ...algorithms import planner_names

    return planner_names()


def _presets() -> list[str]:
    from ...workloads import PRESETS

    return list(PRESETS)


def _devices() -> list[str]:
    from ...workloads.devices import device_names

    return device_names()


def _synthetic() -> list[str]:
    from ...workloads import SYNTHETIC

    return list(SYNTHETIC)


def _optimizers() -> list[str]:
    from ...workloads import STATE_RULES

    return ["adamw", *STATE_RULES]


def _choices(name: str) -> Callable[[], Iterable[str]]:
    def choices() -> Iterable[str]:
        from ...workloads import config_checks, devices, options

        return {
            "attention": config_checks.ATTENTIONS,
            "dtype": tuple(devices.DTYPE_BYTES),
            "granularity": options.GRANULARITIES,
            "level": ("block", "op"),
        }[name]

    return choices


def planner_list(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Completions of a list with commas, in which no name stands twice."""
    *given, last = incomplete.split(",")
    names = [name for name in _planners() if name.startswith(last) and name not in given]
    return [CompletionItem(",".join([*given, name])) for name in names]


def files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The shell's own completion of file names."""
    return [CompletionItem(incomplete, type="file")]


planner = _one_of(_planners)

OF_OPTIONS: dict[str, Complete] = {
    "preset": _one_of(_presets),
    "device": _one_of(_devices),
    "synthetic": _one_of(_synthetic),
    "optimizer": _one_of(_optimizers),
    "times_path": files,
    **{name: _one_of(_choices(name)) for name in ("attention", "dtype", "granularity", "level")},
}
"""Field of `WorkloadOptions` -> the completion of its option."""

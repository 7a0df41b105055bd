"""Dynamo's settings for a piece of work, and what it counts of graphs that it broke."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch._dynamo as dynamo
from torch._dynamo.utils import counters


@contextmanager
def dynamo_settings(settings: dict[str, Any]) -> Iterator[None]:
    """Dynamo's own settings for what is compiled in the block, and only for that."""
    known = {name: value for name, value in settings.items() if hasattr(dynamo.config, name)}
    with dynamo.config.patch(known):
        yield


def graph_breaks() -> Mapping[str, int]:
    """How often Dynamo has broken a graph, or stopped, so far, by its reason."""
    return dict(counters["graph_break"])


def last_graph_break(before: Mapping[str, int]) -> str:
    """A reason counted since `before`, the newest, in a line; empty where there is none."""
    now = counters["graph_break"].items()
    found = [reason for reason, count in now if count > before.get(reason, 0)]
    lines = [line.strip() for line in found[-1].splitlines() if line.strip()] if found else []
    named = [line for line in lines if line.startswith(("Explanation:", "Developer debug"))]
    return "; ".join([*lines[:1], *(line.partition(":")[2].strip() for line in named)])[:300]

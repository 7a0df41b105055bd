"""One workload for all ranks, in which each number is the largest of all ranks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from schedsim.dataflow.chain import Chain
from schedsim.dataflow.graph import Graph
from schedsim.errors import UnsupportedError

from .ranks import Ranks


def envelope(workload: Chain | Graph, ranks: Ranks) -> Chain | Graph:
    """The workload in which every size and time is the largest of any rank.

    The peak of a schedule grows with the sizes, so that a schedule which fits the envelope fits
    every rank; and a step of ranks that wait for each other is as long as the step of the slowest.
    The requests that were recorded of an allocator are kept where those of all ranks are equal.

    Raises
    ------
    UnsupportedError
        The ops differ between ranks.
    """
    if ranks.alone:
        return workload
    recorded = workload.recorded
    bare = replace(workload, recorded=None)
    ints: list[int] = []
    floats: list[float] = []
    digest = _digest(_form(bare, "", ints, floats))
    row = (digest, len(workload.op_names), len(ints), len(floats))
    rows = ranks.gather((row, _digest(repr(recorded))), "compare steps")
    if len({row for row, _ in rows}) > 1:
        sizes = ", ".join(
            f"rank {rank}: {row[1]} ops" for rank, (row, _) in zip(ranks.members, rows, strict=True)
        )
        raise UnsupportedError(
            f"the ranks' steps of {workload.name} are made of different ops ({sizes})",
            hint="ranks with sharded parameters run one schedule: give them inputs of one form",
        )
    ints, floats = ranks.largest(ints, floats)
    found = _filled(bare, "", iter(ints), iter(floats))
    assert isinstance(found, Chain | Graph)
    is_common = len({requests for _, requests in rows}) == 1
    return replace(found, recorded=recorded) if is_common else found


def _digest(form: Any) -> str:
    return hashlib.sha256(json.dumps(form, sort_keys=True).encode()).hexdigest()


def _form(item: Any, key: str, ints: list[int], floats: list[float]) -> Any:
    """`item` without its numbers, which go into the lists in order.

    A number of zero is a number like others: that one rank's clock or allocator saw nothing of an
    op makes no other op of it.
    """
    if is_dataclass(item):
        return [type(item).__name__, *(_form(v, k, ints, floats) for k, v in _fields_of(item))]
    if isinstance(item, Mapping):
        return {name: _form(item[name], name, ints, floats) for name in sorted(item)}
    if isinstance(item, tuple | list):
        return [_form(one, key, ints, floats) for one in item]
    if isinstance(item, bool) or not isinstance(item, int | float):
        return item
    if _is_time(item, key):
        floats.append(float(item))
    else:
        ints.append(int(item))
    return 0


def _filled(item: Any, key: str, ints: Iterator[int], floats: Iterator[float]) -> Any:
    """`item` with its numbers replaced by those of the iterators, in the order of `_form`."""
    if is_dataclass(item) and not isinstance(item, type):
        return replace(item, **{k: _filled(v, k, ints, floats) for k, v in _fields_of(item)})
    if isinstance(item, Mapping):
        found = {name: _filled(item[name], name, ints, floats) for name in sorted(item)}
        return {name: found[name] for name in item}
    if isinstance(item, tuple | list):
        return type(item)(_filled(one, key, ints, floats) for one in item)
    if isinstance(item, bool) or not isinstance(item, int | float):
        return item
    return float(next(floats)) if _is_time(item, key) else int(next(ints))


def _fields_of(item: Any) -> list[tuple[str, Any]]:
    return [(field.name, getattr(item, field.name)) for field in fields(item) if field.init]


def _is_time(item: int | float, key: str) -> bool:
    # The name of the field decides, not the way a number happens to be written.
    return isinstance(item, float) or key.endswith("_s")

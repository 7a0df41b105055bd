"""One workload for all ranks, in which each number is the largest of all ranks."""

from __future__ import annotations

import hashlib
import json
from typing import Any, TypeVar

from schedsim.dataflow.chain import Chain
from schedsim.dataflow.graph import Graph
from schedsim.errors import UnsupportedError
from schedsim.files.document import from_dict, to_dict

from .ranks import Ranks

W = TypeVar("W", Chain, Graph)


def envelope(workload: Chain | Graph, ranks: Ranks) -> Chain | Graph:
    """The workload in which every size and time is the largest of any rank.

    The peak of a schedule grows with the sizes, so that a schedule which fits the envelope fits
    every rank; and a step of ranks that wait for each other is as long as the step of the slowest.

    Raises
    ------
    UnsupportedError
        The ops differ between ranks.
    """
    if ranks.alone:
        return workload
    document = to_dict(workload)
    ints: list[int] = []
    floats: list[float] = []
    skeleton = _taken_out(document, "", ints, floats)
    digest = hashlib.sha256(json.dumps(skeleton, sort_keys=True).encode()).hexdigest()
    row = (digest, len(workload.op_names), len(ints), len(floats))
    rows = ranks.gather(row, "compare steps")
    if len(set(rows)) > 1:
        sizes = ", ".join(
            f"rank {rank}: {row[1]} ops" for rank, row in zip(ranks.members, rows, strict=True)
        )
        raise UnsupportedError(
            f"the ranks' steps of {workload.name} are made of different ops ({sizes})",
            hint="ranks with sharded parameters run one schedule: give them inputs of one form",
        )
    ints, floats = ranks.largest(ints, floats)
    found = from_dict(_put_back(skeleton, iter(ints), iter(floats)))
    assert isinstance(found, Chain | Graph)
    return found


_INT, _FLOAT = "<int>", "<float>"


def _taken_out(item: Any, key: str, ints: list[int], floats: list[float]) -> Any:
    """`item` with its numbers moved into the lists, in order."""
    if isinstance(item, dict):
        return {name: _taken_out(item[name], name, ints, floats) for name in item}
    if isinstance(item, list):
        return [_taken_out(one, key, ints, floats) for one in item]
    if isinstance(item, bool) or not isinstance(item, int | float):
        return item
    # The name of the field decides, not the way a number happens to be written.
    if isinstance(item, float) or key.endswith("_s"):
        floats.append(float(item))
        return {_FLOAT: None}
    ints.append(item)
    return {_INT: None}


def _put_back(item: Any, ints: Any, floats: Any) -> Any:
    if isinstance(item, dict):
        if _INT in item:
            return next(ints)
        if _FLOAT in item:
            return next(floats)
        return {name: _put_back(item[name], ints, floats) for name in item}
    if isinstance(item, list):
        return [_put_back(one, ints, floats) for one in item]
    return item

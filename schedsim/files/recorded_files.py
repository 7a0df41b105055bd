"""The requests that the ops of a step made to an allocator, in workload files."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from ..allocators.caching import CachingOptions
from ..checks.value_checks import shown
from ..dataflow.recorded_step import RecordedStep
from ..errors import InvalidWorkloadError, SchedsimError
from .reader import Reader

MOST_BYTES = 2**53 - 1


def recorded_to_dict(recorded: RecordedStep) -> dict[str, Any]:
    """The field ``recorded`` of a workload file."""
    return {
        "resident_segments": [list(segment) for segment in recorded.resident_segments],
        "block_bytes": list(recorded.block_bytes),
        "holders": list(recorded.holders),
        "records": {name: list(record) for name, record in recorded.records.items()},
        "first_records": {name: list(row) for name, row in recorded.first_records.items()},
        "first_blocks": {name: list(row) for name, row in recorded.first_blocks.items()},
        "first_end": list(recorded.first_end),
        "later_end": list(recorded.later_end),
        "allocator_options": dict(recorded.allocator_options),
    }


def read_recorded(item: Reader) -> RecordedStep:
    """Read what `recorded_to_dict` wrote.

    Raises
    ------
    InvalidWorkloadError
        A block is not there, or is asked for by two records.
    """
    sizes = tuple(item.take_bytes_list("block_bytes"))
    holders = item.take("holders", list)
    if len(holders) != len(sizes) or not all(isinstance(name, str) for name in holders):
        raise InvalidWorkloadError(f"holders: not one text for each of {len(sizes)} blocks")
    records, first = item.take("records", dict), item.take("first_records", dict, {})
    first_blocks = item.take("first_blocks", dict, {})
    found = RecordedStep(
        resident_segments=tuple(
            _integers(segment, "resident_segments", MOST_BYTES)
            for segment in item.take("resident_segments", list)
        ),
        block_bytes=sizes,
        holders=tuple(holders),
        records={
            name: _integers(record, f"records.{name}", len(sizes) - 1)
            for name, record in records.items()
        },
        first_records={
            name: _integers(record, f"first_records.{name}", len(sizes) - 1)
            for name, record in first.items()
        },
        first_blocks={
            name: _integers(blocks, f"first_blocks.{name}", len(sizes) - 1, least=0)
            for name, blocks in first_blocks.items()
        },
        first_end=_integers(item.take("first_end", list, []), "first_end", len(sizes) - 1),
        later_end=_integers(item.take("later_end", list, []), "later_end", len(sizes) - 1),
        allocator_options=_options(item.take_settings("allocator_options")),
    )
    item.finish()
    return found


def _integers(values: Any, name: str, most: int, least: int | None = None) -> tuple[int, ...]:
    """`values`: each at most `most`; and at least `least`, or else the complement of one."""
    least = ~most if least is None else least
    if not isinstance(values, list):
        raise InvalidWorkloadError(f"{shown(values)} is not a list", path=f"recorded.{name}")
    for i, value in enumerate(values):
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise InvalidWorkloadError(
                f"{shown(value)} is no block and no size", path=f"recorded.{name}[{i}]"
            )
    return tuple(values)


def _options(given: dict[str, Any]) -> dict[str, Any]:
    known = {field.name for field in fields(CachingOptions)}
    try:
        if set(given) <= known:
            CachingOptions(**given)
            return given
    except (SchedsimError, TypeError):
        pass
    raise InvalidWorkloadError(
        f"{shown(given)} are no settings of the allocator", path="recorded.allocator_options"
    )

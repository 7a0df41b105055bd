"""Records of plain values as JSON objects, with a key for each field."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def fields_to_dict(record: DataclassInstance, table: str) -> dict[str, Any]:
    """The fields of `record`, as its file holds them.

    Parameters
    ----------
    record
        A dataclass whose fields are JSON values.
    table
        The field that is a mapping: it is written last, as an object.

    Examples
    --------
    >>> from schedsim.plans.setting import AllocatorChoice
    >>> fields_to_dict(AllocatorChoice("arena", {"align": 8}), table="options")["options"]
    {'align': 8}
    """
    names = [field.name for field in fields(record) if field.name != table]
    return {name: getattr(record, name) for name in names} | {table: dict(getattr(record, table))}

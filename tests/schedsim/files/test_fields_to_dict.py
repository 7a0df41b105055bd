"""Records of plain values as JSON objects."""

from dataclasses import dataclass, field
from types import MappingProxyType

from schedsim.files.fields_to_dict import fields_to_dict


@dataclass(frozen=True, slots=True)
class Found:
    """A record whose mapping stands between other fields, and cannot be written as it is."""

    chosen: str
    figures: dict = field(default_factory=dict)
    num_moves: int | None = None


def test_every_field_is_a_key_and_the_mapping_is_last():
    """The mapping is a table of its own: a change of the document leaves the record alone."""
    figures = {"cuts": 3}
    document = fields_to_dict(Found("rotor", MappingProxyType(figures), 7), table="figures")
    assert list(document.items()) == [("chosen", "rotor"), ("num_moves", 7), ("figures", figures)]
    assert type(document["figures"]) is dict
    document["figures"]["cuts"] = 4
    assert figures == {"cuts": 3}

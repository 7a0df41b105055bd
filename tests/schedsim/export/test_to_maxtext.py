"""Configuration of MaxText: a policy, and where each named tensor goes."""

from __future__ import annotations

import yaml
from small_exports import loose, tight

from schedsim.export.to_maxtext import NAMES


def test_a_policy_for_a_chain():
    """Each layer of its scan saves its input at the least, so that nothing exact is left."""
    assert yaml.safe_load(tight("maxtext").text) == {"remat_policy": "full"}


def test_every_name_of_a_graph_has_a_place():
    """On the device where it is saved."""
    document = yaml.safe_load(loose("maxtext", True).text)
    assert document.pop("remat_policy") == "custom"
    assert set(document) == {"decoder_layer_input", *(n for row in NAMES.values() for n in row)}
    assert set(document.values()) == {"device"}

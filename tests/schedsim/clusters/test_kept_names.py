"""Policies that name what is kept."""

import pytest

from schedsim.clusters.kept_names import by_layers, keeping, kept_names


@pytest.mark.parametrize("policy", ["none", "full", "selective", "keep", "keep=", "keep=q+", "q+v"])
def test_other_policies_name_nothing(policy):
    """Nor does one with an empty name."""
    assert kept_names(policy) is None


def test_names_come_back():
    """The names that were written come back."""
    assert kept_names(keeping(["q", "mixed"])) == {"q", "mixed"}
    assert keeping([]) == "full"


def test_layers_alike_are_counted():
    """One policy for all has no count."""
    assert by_layers(["full", "keep=q", "keep=q", "none"]) == "full:1,keep=q:2,none:1"
    assert by_layers(["keep=q"] * 3) == "keep=q"

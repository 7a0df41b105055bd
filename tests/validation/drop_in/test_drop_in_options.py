"""Options of the backend."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from schedsim.validation.drop_in.drop_in_options import DropInOptions

from schedsim.errors import SchedsimError


def test_what_is_unknown_is_named():
    """With the nearest, or with all."""
    with pytest.raises(SchedsimError, match="'efort'") as error:
        DropInOptions.read({"budget": 1, "efort": 2})
    assert "'effort'" in str(error.value.hint)
    with pytest.raises(SchedsimError, match="needs a budget"):
        DropInOptions.read(None)


def test_the_largest_by_dimension():
    assert DropInOptions.read({"budget": 1, "largest": {1: 2048}}).largest == {1: 2048}
    for wrong in (2048, {"x": 3}, {1: True}):
        with pytest.raises(SchedsimError, match="largest="):
            DropInOptions.read({"budget": 1, "largest": wrong})

"""Copies are typed, and one module knows what their ops are called."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedsim.dataflow.copies import Copy, copies_in, parse_copy

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@given(
    st.builds(Copy, st.text(min_size=1, max_size=8), st.booleans(), st.integers(2, 12)),
)
def test_a_name_is_read_as_it_was_written(copy):
    """Whatever the tensor is called."""
    assert parse_copy(copy.name) == copy


def test_ops_of_the_workload_are_no_copies():
    """A workload may call its own op as it likes."""
    names = ["F0", Copy("a1").name, "loss", Copy("a2", back=True).name]
    assert copies_in(names) == [Copy("a1"), Copy("a2", back=True)]
    assert copies_in(names, beside=[names[1]]) == [Copy("a2", back=True)]


def test_no_other_module_spells_the_names():
    """Prefixes of names stand in the one module that makes and reads them."""
    own = ROOT / "schedsim" / "dataflow" / "copies.py"
    spelled = []
    for folder in ("schedsim", "algorithms", "validation"):
        for file in (ROOT / folder).rglob("*.py"):
            lines = file.read_text().splitlines() if file != own else []
            spelled += [f"{file.name}: {line}" for line in lines if "d2h:" in line.split("#")[0]]
    # A field of a dataclass is annotated with the same letters.
    assert [line for line in spelled if "d2h: Link" not in line] == []

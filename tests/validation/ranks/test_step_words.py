"""What ranks tell each other at the start of a step, and what follows."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.ranks.failures import is_agreed
from schedsim.validation.ranks.step_words import StepWord, agreed

from schedsim.errors import SchedsimError

WORD = StepWord("runs a step", "a", "outside of autocast", 1, {("a", "a"): (1, 2, 3)})


def test_a_plan_fits_where_it_fits_on_all():
    """Plans of the same forms, by their numbers."""
    other = replace(WORD, fitting={("a", "a"): (2, 3, 4), ("a", "b"): (1,)})
    found = agreed([WORD, other], (4, 5))
    assert found.forms == ("a", "a")
    assert found.numbers == {2, 3}


@pytest.mark.parametrize("forms", ["ab", "ba"])
def test_other_forms_have_other_plans(forms):
    """Where one rank has none for these, all plan."""
    words = [replace(WORD, form=form) for form in forms]
    found = agreed(words, (0, 1))
    assert (found.forms, found.numbers) == (tuple(forms), frozenset())


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (StepWord("evaluates"), "rank 5 evaluates, while rank 4 runs a step"),
        (
            replace(WORD, autocast="within autocast (cpu to bfloat16)"),
            "rank 5 runs within autocast (cpu to bfloat16), while rank 4 runs outside of autocast",
        ),
        (replace(WORD, num_changes=0), "rank 5 goes on with an earlier plan than rank 4"),
    ],
)
def test_ranks_that_would_wait_for_each_other_fail(other, says):
    """All of them, with one line, and what to do."""
    with pytest.raises(SchedsimError) as error:
        agreed([WORD, other], (4, 5))
    assert error.value.message == says
    assert "on all ranks" in error.value.hint
    assert is_agreed(error.value)

"""What other ranks are told of an error, and raise in its place."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.ranks.failures import (
    RankError,
    RankStoppedError,
    agree_on,
    heard,
    is_agreed,
    is_elsewhere,
    mark_elsewhere,
    told,
)

from schedsim.errors import SchedsimError


def test_our_errors_come_whole():
    """The same class, and the hint; the message says whose it is, and the first stays as it is."""
    first = SchedsimError("no plan fits", hint="more memory")
    error = heard(told(first), 3, "plan")
    assert type(error) is SchedsimError
    assert (error.message, error.hint) == ("rank 3: no plan fits", "more memory")
    assert first.message == "no plan fits"


@pytest.mark.parametrize(
    ("first", "kind"),
    [(RuntimeError("out of memory"), RankError), (KeyError("x"), RankStoppedError)],
)
def test_other_errors_come_as_text(first, kind):
    """They are of the same family, so that the same handlers catch them."""
    error = heard(told(first), 1, "measure")
    assert type(error) is kind
    assert str(error).startswith(f"rank 1 failed to measure: {type(first).__name__}: ")
    assert isinstance(error, RuntimeError) == isinstance(first, RuntimeError)


def test_an_error_of_ours_that_cannot_be_sent_comes_as_text():
    """As one that holds a function."""
    error = SchedsimError("broken")
    error.culprit = lambda: None
    assert "SchedsimError: broken" in str(heard(told(error), 0, "plan"))


def test_an_error_that_all_raise_is_marked():
    """No rank need be told again."""
    error = ValueError()
    assert not is_agreed(error)
    assert is_agreed(agree_on(error))


def test_an_error_of_a_rank_that_is_elsewhere_is_marked():
    """A second try would wait for that rank."""
    error = heard(told(ValueError()), 1, "plan a step")
    assert not is_elsewhere(error)
    assert is_elsewhere(mark_elsewhere(error))

"""Results of earlier steps that the loop still holds."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.beside.earlier_results import EarlierResults  # noqa: E402
from schedsim.validation.drop_in.parts.output_uses import results_of  # noqa: E402


def begun(earlier, given=(), fixed=(), few_bytes=0):
    return earlier.begin_step(given, lambda: fixed, few_bytes)


def test_what_the_loop_holds_is_counted_until_it_is_gone():
    earlier, held, dropped = EarlierResults(), torch.zeros(100), torch.zeros(50)
    earlier.add(results_of([held, held[:10], dropped]))
    del dropped
    assert begun(earlier) == earlier.stay_bytes() == 400
    del held
    assert earlier.stay_bytes() == 0
    assert begun(earlier) == 0


def test_what_is_counted_elsewhere_is_not_counted_again():
    """What the step is given, and what the model holds."""
    earlier, held = EarlierResults(), torch.zeros(100)
    earlier.add(results_of([held]))
    place = held.untyped_storage().data_ptr()
    assert begun(earlier, given={place}) == begun(earlier, fixed={place}) == 0
    assert begun(earlier) == 400


def test_the_state_of_the_model_is_looked_at_only_where_something_is_held():
    assert EarlierResults().begin_step((), lambda: pytest.fail("not needed"), 0) == 0


def test_a_few_bytes_as_a_loss_are_told_and_not_watched():
    earlier, loss = EarlierResults(), torch.zeros(1)
    earlier.add(results_of([loss]))
    assert begun(earlier, few_bytes=4) == 4
    assert earlier.stale == []
    assert begun(earlier, few_bytes=3) == 4
    assert len(earlier.stale) == 1


def test_outputs_of_an_evaluation_are_watched_in_any_tree():
    earlier = EarlierResults()
    outputs = {"logits": torch.zeros(10), "more": [torch.zeros(5), "text"]}
    earlier.add_evaluation(outputs)
    assert begun(earlier) == 60
    del outputs["more"]
    assert earlier.stay_bytes() == 40


def test_a_few_that_stay_tell_nothing_of_the_others():
    """As a loss that the loop collects, beside logits that it drops."""
    earlier, logits, loss = EarlierResults(), torch.zeros(100), torch.zeros(1)
    earlier.add(results_of([logits, loss]))
    assert begun(earlier, few_bytes=4) == 404
    assert earlier.stay_bytes() == 404
    del logits
    assert earlier.stay_bytes() == 0

"""Labels of the programs of cuts, and what one program leaves to the next."""

from __future__ import annotations

import numpy as np
import pytest
from schedsim.algorithms.graphs._cut_labels import AGAIN, ALIVE, INPUT, NEED, CutLabels

LABELS = CutLabels(num_ops=20, num_items=50)


def test_a_label_says_what_it_is_of():
    """Its kind and its cuts; what has no label has a negative kind."""
    found = LABELS.parts(np.array([*LABELS.of(INPUT, 3, 20, [0, 49]), -1]))
    assert [part[:2].tolist() for part in found] == [[INPUT] * 2, [3] * 2, [20] * 2]
    assert found[0][2] < 0


def carried(known: dict, wanted: list, cuts: list) -> list:
    """Of labels as (kind, begin, end, item)."""
    numbers = [LABELS.of(*label[:3], [label[3]])[0] for label in known]
    asked = [-1 if label is None else LABELS.of(*label[:3], [label[3]])[0] for label in wanted]
    values = np.array(list(known.values()), dtype=np.float64)
    found = LABELS.carried(np.array(numbers), values, np.array(asked), np.array(cuts))
    return found.tolist()


def test_what_is_known_stays():
    """Labels in any order; others of the same cuts have no value."""
    known = {(NEED, 4, 9, 7): 3.0, (AGAIN, 4, 9, 7): 2.0, (AGAIN, 4, 9, 6): 1.0}
    wanted = [(AGAIN, 4, 9, 6), (NEED, 4, 9, 7), (NEED, 4, 9, 8), None, (AGAIN, 4, 9, 7)]
    assert carried(known, wanted, [4, 9]) == [1.0, 3.0, 0.0, 0.0, 2.0]


@pytest.mark.parametrize("kind", [AGAIN, NEED, INPUT])
def test_a_part_of_an_interval_has_what_the_whole_had(kind):
    """Between two cuts there lie new ones; in front of the first there was nothing."""
    known = {(kind, 4, 9, 7): 3.0, (kind, 9, 20, 7): 2.0}
    wanted = [(kind, 4, 6, 7), (kind, 6, 9, 7), (kind, 6, 8, 7), (kind, 12, 20, 7), (kind, 2, 4, 7)]
    assert carried(known, wanted, [4, 9]) == [3.0, 3.0, 3.0, 2.0, 0.0]


def test_at_a_new_cut_that_is_alive_which_is_so_at_the_next():
    """Behind the last cut nothing is known."""
    known = {(ALIVE, 4, 4, 7): 0.25, (ALIVE, 9, 9, 7): 1.0}
    wanted = [(ALIVE, 6, 6, 7), (ALIVE, 2, 2, 7), (ALIVE, 12, 12, 7)]
    assert carried(known, wanted, [4, 9]) == [1.0, 0.25, 0.0]

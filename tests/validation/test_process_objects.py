"""The objects of the process, found while other threads make more."""

from __future__ import annotations

import sys
import threading

import pytest
from schedsim.validation.process_objects import objects_of, objects_within


class Row:
    def __init__(self):
        self.number = []


class Wide(Row):
    pass


class Asks:
    """An object whose class is computed: nothing of it may run."""

    @property
    def __class__(self):
        raise AssertionError("asked")


def test_objects_are_found_by_their_class_or_by_what_it_is_derived_from():
    one, two, other = Row(), Wide(), Asks()
    assert {*objects_of(Row)} == {one}
    assert {*objects_of(Row, Wide)} == {*objects_within(Row)} == {one, two}
    assert type(other) is Asks


def test_what_was_found_is_not_held():
    one = Row()
    before = sys.getrefcount(one)
    objects_of(Row)
    objects_within(Wide)
    assert sys.getrefcount(one) == before


@pytest.fixture
def busy_threads():
    """Threads take turns much more often than by default."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("busy_threads")
def test_a_thread_that_makes_tuples_meanwhile_is_not_disturbed():
    """As one that loads data: CPython raises where something else holds a tuple that is made."""
    kept = [[i] for i in range(50_000)]
    raised, is_over = [], threading.Event()

    def load():
        while not is_over.is_set():
            try:
                tuple(i for i in range(40))
            except SystemError as error:
                raised.append(error)

    thread = threading.Thread(target=load)
    thread.start()
    for _ in range(8):
        objects_of(Row)
        objects_within(Row)
    is_over.set()
    thread.join()
    assert not raised
    assert len(kept) == 50_000

"""NumPy's state is asked for anew where anything has drawn, and is the true one."""

from __future__ import annotations

import numpy as np
import pytest
from schedsim.validation.guards.numpy_state import NumpyState

pytest.importorskip("torch")


def equal(one, two):
    return all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize(
    "draw",
    [
        lambda: np.random.rand(),
        lambda: np.random.randn(),  # twice: the second number of a pair waits
        lambda: np.random.randint(3),
        lambda: np.random.shuffle([1, 2, 3]),
        lambda: np.random.seed(5),
        lambda: np.random.bytes(1),
    ],
)
def test_the_state_is_the_present_one_whatever_draws(draw):
    state = NumpyState()
    for _ in range(5):
        assert equal(state.now(), np.random.get_state())
        draw()
    assert equal(state.now(), np.random.get_state())


def test_a_state_that_was_set_back_is_seen():
    state, before = NumpyState(), np.random.get_state()
    state.now()
    np.random.rand()
    state.now()
    np.random.set_state(before)
    assert equal(state.now(), before)


def test_a_generator_of_another_kind_is_asked_each_time():
    before = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(1))
    try:
        state = NumpyState()
        first = state.now()
        np.random.rand()
        assert state.now() is not first
    finally:
        np.random.set_bit_generator(before)

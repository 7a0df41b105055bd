"""A scan with checkpoints: gradients equal, within the carries allowed, in less memory by XLA."""

from __future__ import annotations

import math

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed")

from jax import numpy as jnp  # noqa: E402 (jax may be missing)
from tiers import slow_where  # noqa: E402

from schedsim.errors import InvalidWorkloadError, SchedsimError  # noqa: E402
from schedsim.jax import checkpointed_scan, plan_scan  # noqa: E402


def loss_of(scan):
    def loss(init, xs, weight):
        def f(carry, x):
            new = jnp.tanh(carry @ weight + x)
            return new, (new**2).sum()

        carry, ys = scan(f, init, xs)
        return (carry**3).sum() + ys.sum()

    return loss


def arguments(steps, width=16, batch=64):
    rng = np.random.default_rng(0)
    shapes = (batch, width), (steps, batch, width), (width, width)
    return [jnp.asarray(0.1 * rng.normal(size=shape), jnp.float32) for shape in shapes]


def compiled(scan, given):
    return jax.jit(jax.value_and_grad(loss_of(scan), (0, 1, 2))).lower(*given).compile()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "snapshots"),
    slow_where([(1, 1), (2, 1), (7, 3), (60, 4), (60, 100)], lambda case: case != (7, 3)),
)
def test_gradients_are_those_of_the_plain_scan(steps, snapshots):
    """Value, and gradients to the first carry, the inputs, and what is closed over: to the bit."""
    given = arguments(steps)
    plain = compiled(jax.lax.scan, given)(*given)
    ours = compiled(lambda f, i, x: checkpointed_scan(f, i, x, snapshots=snapshots), given)(*given)
    for one, other in zip(jax.tree.leaves(plain), jax.tree.leaves(ours), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_xla_needs_the_carries_that_are_stored_and_little_more():
    """Its own count of temporary bytes, beside the plain scan's."""
    given = arguments(400)
    carry = given[0].nbytes
    plain = compiled(jax.lax.scan, given).memory_analysis()
    ours = compiled(lambda f, i, x: checkpointed_scan(f, i, x, snapshots=6), given)
    small = ours.memory_analysis()
    assert plain.temp_size_in_bytes > 400 * carry
    assert small.temp_size_in_bytes < (6 + 8) * carry + 10_000
    budget = compiled(lambda f, i, x: checkpointed_scan(f, i, x, budget=6 * carry), given)
    assert budget.memory_analysis().temp_size_in_bytes == small.temp_size_in_bytes


@pytest.mark.slow
def test_carries_of_numbers_keys_and_texts_of_no_gradient():
    """A counter and a random key are carried along; ys may be whole numbers; xs may be none."""

    def value(scan, start):
        def f(carry, _):
            key = jax.random.fold_in(carry["key"], carry["n"])
            new = 0.9 * jnp.sin(carry["h"]) + 0.1 * jax.random.normal(key, carry["h"].shape)
            return {**carry, "h": new, "n": carry["n"] + 1}, {"sum": new.sum(), "n": carry["n"]}

        init = {"h": start, "n": 0, "key": jax.random.PRNGKey(0)}
        carry, ys = scan(f, init)
        return carry["h"].sum() + (ys["sum"] * ys["n"]).sum()

    start = jnp.linspace(-1, 1, 5)
    plain = jax.grad(lambda h: value(lambda f, i: jax.lax.scan(f, i, length=30), h))(start)
    ours = jax.grad(
        lambda h: value(lambda f, i: checkpointed_scan(f, i, length=30, snapshots=3), h)
    )(start)
    np.testing.assert_allclose(plain, ours, rtol=1e-6)


def test_the_plan_of_a_scan_is_binomial():
    """Every step once by the scan, once by its own backward, and between as Griewank & Walther say.

    Their least number of forwards for n steps and s checkpoints is t n - C(s + t, t - 1) with the t
    of C(s + t - 1, t - 1) < n <= C(s + t, t); it counts the first sweep, without the last step.
    """
    for n in (2, 10, 100, 333):
        for s in (1, 3, 10):
            t = next(t for t in range(1, n + 1) if math.comb(s + t, t) >= n)
            least = t * n - math.comb(s + t, t - 1)
            assert plan_scan(n, s).forwards == least + n + 1


def test_slots_are_written_once_before_they_are_read():
    """Replay of the tables on names: each backward begins from the carry that it says."""
    for n, s in ((1, 1), (30, 2), (50, 7), (20, 20)):
        plan = plan_scan(n, s)
        slots = {}
        for step in range(n):
            slots[int(plan.stored_first[step])] = step
        slots.pop(s, None)
        here = n - 1
        for step in reversed(range(n)):
            if plan.load[step] >= 0:
                here = slots[int(plan.load[step])]
            assert here == plan.first[step] or plan.load[step] < 0
            for at in range(plan.start[step], plan.start[step + 1]):
                assert plan.stored_again[at] <= s
                slots[int(plan.stored_again[at])] = here
                here += 1
            assert here == step


def test_what_cannot_be_scanned_is_refused():
    """With the value and the remedy."""

    def f(carry, x):
        return carry, x

    for more, error, words in (
        ({}, SchedsimError, "exactly one of snapshots and budget"),
        ({"snapshots": 2, "budget": 5}, SchedsimError, "exactly one of snapshots and budget"),
        ({"snapshots": 0}, SchedsimError, "0 snapshots"),
        ({"budget": "3B"}, SchedsimError, "hold no carry"),
        ({"snapshots": 1, "length": 4}, InvalidWorkloadError, r"lengths \[3, 4\]"),
    ):
        with pytest.raises(error, match=words):
            checkpointed_scan(f, jnp.zeros(4), jnp.zeros(3), **more)

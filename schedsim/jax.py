"""`lax.scan` with checkpoints: gradients in the memory of a few carries, at the least repetition.

>>> import jax, jax.numpy as jnp
>>> from schedsim.jax import checkpointed_scan
>>> def f(carry, x):
...     return jnp.sin(carry) + x, carry.sum()
>>> def loss(init):
...     return checkpointed_scan(f, init, jnp.ones((100, 3)), snapshots=5)[0].sum()
>>> jax.grad(loss)(jnp.zeros(3)).shape
(3,)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .algorithms.chains.adjoint_steps import AdjointSteps, StepAction, plan_adjoint
from .errors import InvalidWorkloadError, MissingDependencyError, SchedsimError
from .units import parse_bytes

try:
    import jax
    import jax.numpy as jnp
    from jax import lax
except ImportError as error:
    raise MissingDependencyError("schedsim.jax needs jax", hint="pip install jax") from error

__all__ = ["ScanPlan", "checkpointed_scan", "plan_scan"]

Tree = Any


class ScanPlan(NamedTuple):
    """When each carry of a scan is stored, as arrays that the compiled loops read.

    Attributes
    ----------
    num_steps, num_slots : int
    forwards : int
        Steps taken forward in all: by the scan itself, again between checkpoints, and within the
        vector-Jacobian product of every step.
    stored_first : ndarray
        For each step of the scan itself, the slot that stores the carry before the step;
        `num_slots` if the carry is not stored.
    load : ndarray
        For the backward of each step, the slot whose carry the forward begins again from; -1 to go
        on from the current carry.
    first : ndarray
        For each step, the step that this carry stands before.
    start : ndarray
        For each step, where its advances begin in `stored_again`; one entry more than steps.
    stored_again : ndarray
        For each advance, the slot that stores the carry before it.
    """

    num_steps: int
    num_slots: int
    forwards: int
    stored_first: NDArray[np.int32]
    load: NDArray[np.int32]
    first: NDArray[np.int32]
    start: NDArray[np.int32]
    stored_again: NDArray[np.int32]


@cache
def plan_scan(num_steps: int, snapshots: int) -> ScanPlan:
    """The plan of least repetition for `num_steps` equal steps with at most `snapshots` carries.

    The plan is binomial checkpointing (Griewank & Walther 2000, ACM TOMS 26, 19), found by the
    recurrence of `schedsim.algorithms.chains.adjoint_steps` with restart data alone. O(steps^2
    snapshots).

    Examples
    --------
    >>> plan_scan(100, 100).forwards, plan_scan(100, 10).forwards
    (200, 323)
    """
    snapshots = min(snapshots, num_steps)
    ones = np.ones(num_steps, dtype=np.int64)
    steps = AdjointSteps(np.ones(num_steps), ones, (snapshots + 1) * ones)
    actions = list(plan_adjoint(steps, snapshots).actions())
    turn = next(number for number, one in enumerate(actions) if one.what == "reverse")
    slots = _CarrySlots(snapshots)
    stored_first = np.full(num_steps, snapshots, np.int32)
    for one in actions[:turn]:
        if one.data == "restart":
            stored_first[one.first] = slots.take(one.first)
    load, first = np.full(num_steps, -1, np.int32), np.arange(num_steps, dtype=np.int32)
    again: list[list[int]] = [[] for _ in range(num_steps)]
    waiting: list[StepAction] = []
    for one in actions[turn - 1 :]:  # the backward of the last step repeats that step itself
        if one.what != "reverse":
            waiting.append(one)
            continue
        step = one.first
        for part in waiting:
            if part.what == "load":
                load[step], first[step] = slots.of[part.first], part.first
                if part.last_use:
                    slots.leave(part.first)
            elif part.data != "adjoint":
                stored = slots.take(part.first) if part.data == "restart" else snapshots
                again[step] += [stored, *[snapshots] * (part.last - part.first - 1)]
        waiting = []
    lengths = [len(one) for one in again]
    return ScanPlan(
        num_steps=num_steps,
        num_slots=snapshots,
        forwards=2 * num_steps + sum(lengths),
        stored_first=stored_first,
        load=load,
        first=first,
        start=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        stored_again=np.array([slot for one in again for slot in one] or [0], np.int32),
    )


class _CarrySlots:
    """Which slot holds the carry of which step."""

    def __init__(self, number: int) -> None:
        self.free = list(range(number - 1, -1, -1))
        self.of: dict[int, int] = {}

    def take(self, step: int) -> int:
        self.of[step] = self.free.pop()
        return self.of[step]

    def leave(self, step: int) -> None:
        self.free.append(self.of.pop(step))


def checkpointed_scan(
    f: Callable[[Tree, Tree], tuple[Tree, Tree]],
    init: Tree,
    xs: Tree = None,
    length: int | None = None,
    *,
    snapshots: int | None = None,
    budget: int | str | None = None,
) -> tuple[Tree, Tree]:
    """`jax.lax.scan` whose gradient stores a few carries instead of the residuals of every step.

    Parameters
    ----------
    f
        ``f(carry, x) -> (carry, y)``, as `lax.scan` takes it. Arrays that `f` closes over get
        gradients too.
    init, xs, length
        As `lax.scan` takes them.
    snapshots
        The largest number of stored carries.
    budget
        Instead of `snapshots`: bytes for the stored carries, a number or a text like ``"2GiB"``.

    Returns
    -------
    (carry, ys)
        As `lax.scan` returns them.

    Raises
    ------
    SchedsimError
        Neither or both of `snapshots` and `budget`, or room for no carry.
    InvalidWorkloadError
        `xs` of several lengths, or none.

    Notes
    -----
    Only first-order reverse mode works (``jax.grad``, ``jax.vjp``), as `jax.custom_vjp` offers no
    other. The compiled program is no longer than that of a scan, because its loops read from data
    which carry to store when. Steps run forward `ScanPlan.forwards` times in all; two of these per
    step are unavoidable, one in the scan and one within the step's backward.
    """
    if (snapshots is None) == (budget is None):
        raise SchedsimError(
            "give exactly one of snapshots and budget", hint="snapshots=8, or budget='2GiB'"
        )
    num_steps = _length(xs, length)
    if budget is not None:
        allowed = parse_bytes(budget) if isinstance(budget, str) else int(budget)
        each = sum(_num_bytes(leaf) for leaf in jax.tree.leaves(init))
        snapshots = allowed // max(each, 1)
        if snapshots < 1:
            raise SchedsimError(
                f"{allowed} bytes hold no carry", hint=f"one carry takes {each} bytes"
            )
    assert snapshots is not None
    if snapshots < 1:
        raise SchedsimError(f"{snapshots} snapshots", hint="one or more")
    found: tuple[Tree, Tree]
    if num_steps == 0:
        found = lax.scan(f, init, xs, length=0)
        return found
    init = jax.tree.map(jnp.asarray, init)
    xs = jax.tree.map(jnp.asarray, xs)
    one = jax.tree.map(lambda leaf: leaf[0], xs)
    converted, closed = jax.closure_convert(f, init, one)
    plan = plan_scan(num_steps, snapshots)
    found = _scan(converted, plan, init, xs, tuple(closed))
    return found


def _length(xs: Tree, length: int | None) -> int:
    lengths = {leaf.shape[0] for leaf in map(jnp.asarray, jax.tree.leaves(xs))}
    lengths |= set() if length is None else {length}
    if len(lengths) != 1:
        raise InvalidWorkloadError(
            f"the scan has lengths {sorted(lengths)}", hint="xs of one length, or length="
        )
    return int(lengths.pop())


def _num_bytes(leaf: Any) -> int:
    leaf = jnp.asarray(leaf)
    return int(leaf.size * leaf.dtype.itemsize)


def _with_gradient(tree: Tree) -> list[bool]:
    return [bool(jnp.issubdtype(leaf.dtype, jnp.inexact)) for leaf in jax.tree.leaves(tree)]


def _scan(f: Any, plan: ScanPlan, init: Tree, xs: Tree, closed: tuple[Any, ...]) -> Any:
    """The scan with a gradient rule of its own, which follows `plan`."""

    @jax.custom_vjp  # type: ignore[untyped-decorator]
    def run(init: Tree, xs: Tree, closed: tuple[Any, ...]) -> Any:
        return lax.scan(lambda carry, x: f(carry, x, *closed), init, xs, length=plan.num_steps)

    def forward(init: Tree, xs: Tree, closed: tuple[Any, ...]) -> Any:
        def body(state: Any, given: Any) -> Any:
            carry, _, held = state
            slot, x = given
            held = _put(held, slot, carry)
            left, y = f(carry, x, *closed)
            return (left, carry, held), y

        held = jax.tree.map(lambda leaf: jnp.zeros((plan.num_slots, *leaf.shape), leaf.dtype), init)
        # The backward begins from the carry before the last step.
        given = (jnp.asarray(plan.stored_first), xs)
        (last, before, held), ys = lax.scan(body, (init, init, held), given)
        return (last, ys), (before, held, xs, closed)

    def backward(kept: Any, given: Any) -> Any:
        before, held, xs, closed = kept
        g_carry, g_ys = given
        real_carry, real_x = _with_gradient(before), _with_gradient(xs)
        real_closed = _with_gradient(closed)
        g_carry = _select(jax.tree.leaves(g_carry), real_carry)
        g_closed = [jnp.zeros_like(leaf) for leaf in _select(list(closed), real_closed)]
        again = jnp.asarray(plan.stored_again)

        def body(state: Any, one: Any) -> Any:
            carry, held, g_carry, g_closed = state
            load, first, start, stop, x, g_y = one
            loaded = jax.tree.map(lambda many: many[jnp.maximum(load, 0)], held)
            carry = jax.tree.map(lambda a, b: jnp.where(load >= 0, a, b), loaded, carry)

            def advance(at: Any, state: Any) -> Any:
                carry, held = state
                held = _put(held, again[at], carry)
                inputs = jax.tree.map(lambda many: many[first + at - start], xs)
                return f(carry, inputs, *closed)[0], held

            carry, held = lax.fori_loop(start, stop, advance, (carry, held))
            g_carry, g_x, g_more = _pull(f, (carry, x, closed), g_carry, g_y)
            g_closed = [a + b for a, b in zip(g_closed, g_more, strict=True)]
            return (carry, held, g_carry, g_closed), g_x

        tables = [jnp.asarray(t) for t in (plan.load, plan.first, plan.start[:-1], plan.start[1:])]
        state = (before, held, g_carry, g_closed)
        (_, _, g_carry, g_closed), g_xs = lax.scan(body, state, (*tables, xs, g_ys), reverse=True)
        return (
            _merge(before, real_carry, g_carry),
            _merge(xs, real_x, g_xs),
            _merge(closed, real_closed, g_closed),
        )

    run.defvjp(forward, backward)
    return run(init, xs, closed)


def _put(held: Tree, slot: Any, carry: Tree) -> Tree:
    """Store `carry` in `slot`; a slot past the last stores nothing."""
    return jax.tree.map(lambda many, leaf: many.at[slot].set(leaf, mode="drop"), held, carry)


def _pull(f: Any, at: Any, g_carry: list[Any], g_y: Tree) -> tuple[list[Any], list[Any], list[Any]]:
    """The vector-Jacobian product of a step, with respect to its real and complex leaves."""
    trees = [jax.tree.flatten(tree) for tree in at]
    masks = [_with_gradient(tree) for tree in at]

    def step(*wanted: list[Any]) -> Any:
        full = []
        for (leaves, treedef), mask, given in zip(trees, masks, wanted, strict=True):
            rest = iter(given)
            merged = [next(rest) if real else leaf for leaf, real in zip(leaves, mask, strict=True)]
            full.append(jax.tree.unflatten(treedef, merged))
        carry, y = f(full[0], full[1], *full[2])
        outs, ys = jax.tree.leaves(carry), jax.tree.leaves(y)
        return _select(outs, masks[0]), _select(ys, _with_gradient(y))

    wanted = [_select(leaves, mask) for (leaves, _), mask in zip(trees, masks, strict=True)]
    (_, ys), pull = jax.vjp(step, *wanted)
    g_ys = [g for g in jax.tree.leaves(g_y) if g.dtype != jax.dtypes.float0]
    assert len(g_ys) == len(ys)
    g_carry, g_x, g_closed = pull((g_carry, g_ys))
    return g_carry, g_x, g_closed


def _select(leaves: list[Any], mask: list[bool]) -> list[Any]:
    return [leaf for leaf, real in zip(leaves, mask, strict=True) if real]


def _merge(tree: Tree, mask: list[bool], gradients: list[Any]) -> Tree:
    """`gradients` in the places of the leaves that have one; other leaves get type float0."""
    leaves, treedef = jax.tree.flatten(tree)
    rest = iter(gradients)
    full = [
        next(rest) if real else np.zeros(leaf.shape, jax.dtypes.float0)
        for leaf, real in zip(leaves, mask, strict=True)
    ]
    return jax.tree.unflatten(treedef, full)

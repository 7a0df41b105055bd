"""What a code that runs checkpoint_schedules' actions does, written anew, and strict.

A nonlinear recurrence in place of a solver: its state, restart data and adjoint data are arrays.
"""

from __future__ import annotations

import numpy as np
from checkpoint_schedules import EndReverse, StorageType


def step(x, i):
    """A nonlinear step; step `i` differs from others."""
    return x + 0.1 * np.sin(x) * (1 + 0.01 * i) + 0.01 * np.roll(x, 1) ** 2


def adjoint_step(x, i, g):
    """The vector-Jacobian product of `step` at `x`."""
    return g * (1 + 0.1 * np.cos(x) * (1 + 0.01 * i)) + np.roll(0.02 * g, -1) * x


def plain_gradient(x0, n):
    """Value and gradient of the sum of squares of the last state, everything stored."""
    states = [x0]
    for i in range(n):
        states.append(step(states[-1], i))
    g = 2 * states[-1]
    for i in reversed(range(n)):
        g = adjoint_step(states[i], i, g)
    return (states[-1] ** 2).sum(), g


class Executor:
    """Runs a schedule on the recurrence, and refuses what the protocol does not allow.

    Restart data covers the steps of the forward that stored it: where it is loaded, it must reach
    to where the adjoint is, unless `joins` says that the state before a step is enough.

    Attributes
    ----------
    forwards
        How often each step was taken forward.
    peak
        Storage type -> the most bytes stored in it at once.
    """

    def __init__(self, schedule, x0, n, restart_bytes=None, adjoint_bytes=None, joins=False):
        self.schedule, self.n, self.joins = schedule, n, joins
        self.covered = {}  # storage type and step of restart data -> the step that it reaches to
        self.restart_bytes = np.ones(n, int) if restart_bytes is None else restart_bytes
        self.adjoint_bytes = np.ones(n, int) if adjoint_bytes is None else adjoint_bytes
        self.x, self.at, self.data = x0, 0, {}  # at None: no state to go on from
        self.stored = {StorageType.RAM: {}, StorageType.DISK: {}}
        self.forwards, self.value, self.gradient, self.r = np.zeros(n, int), None, None, 0
        self.peak = {StorageType.RAM: 0, StorageType.DISK: 0}
        self.moved = {"written": 0, "read": 0}  # bytes to and from the disk

    def run(self):
        for action in self.schedule:
            getattr(self, type(action).__name__)(action)
            assert self.r == self.schedule.r
            assert self.at is None or self.at == self.schedule.n
            for kind, held in self.stored.items():
                size = sum(self.size(*key) for key in held)
                self.peak[kind] = max(self.peak[kind], size)
            if isinstance(action, EndReverse):
                break
        assert self.schedule.is_exhausted
        assert all(not held for held in self.stored.values())
        return self.value, self.gradient

    def size(self, what, i):
        return int((self.restart_bytes if what == "restart" else self.adjoint_bytes)[i])

    def put(self, storage, what, i, value):
        if storage == StorageType.WORK:
            self.data[i] = value
            return
        assert self.schedule.uses_storage_type(storage)
        assert not any(key[1] == i for key in self.stored[storage])
        self.stored[storage][what, i] = value.copy()
        if storage == StorageType.DISK:
            self.moved["written"] += self.size(what, i)

    def Forward(self, a):
        last = a.n1 if self.schedule.max_n else min(a.n1, self.n)  # the length shows on the way
        assert self.at == a.n0 < last <= self.n - self.r
        self.data = {}
        for i in range(a.n0, last):
            if a.write_ics and i == a.n0:
                self.put(a.storage, "restart", i, self.x)
                self.covered[a.storage, i] = last
            if a.write_adj_deps:
                self.put(a.storage, "adjoint", i, self.x)
            self.x = step(self.x, i)
            self.forwards[i] += 1
        self.at = last
        if self.at == self.n:
            self.schedule.finalize(self.n)

    def EndForward(self, _):
        assert self.at == self.n
        self.value, self.gradient = (self.x**2).sum(), 2 * self.x

    def EndReverse(self, _):
        assert self.r == self.n

    def Reverse(self, a):
        assert a.n1 == self.n - self.r
        for i in a:
            self.gradient = adjoint_step(self.data[i], i, self.gradient)
            self.r += 1
        if a.clear_adj_deps:
            self.data = {}

    def Copy(self, a, delete=False):
        assert not self.data
        [(what, value)] = [
            (key[0], value) for key, value in self.stored[a.from_storage].items() if key[1] == a.n
        ]
        if delete:
            del self.stored[a.from_storage][what, a.n]
        if a.to_storage == StorageType.NONE:
            return
        assert a.to_storage == StorageType.WORK
        assert a.n < self.n - self.r
        if a.from_storage == StorageType.DISK:
            self.moved["read"] += self.size(what, a.n)
        if what == "restart" and not self.joins:
            reached = self.covered[a.from_storage, a.n]
            assert reached >= self.n - self.r, f"{a}: steps from {reached} on are not covered"
        if what == "adjoint":
            self.data, self.at = {a.n: value}, None
        else:
            self.x, self.at = value.copy(), a.n

    def Move(self, a):
        self.Copy(a, delete=True)

"""The plain step in float64: which of two steps that round differently is the more exact one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from math import inf, isfinite
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from ..torch_private.grouped_products import WideGroupedProducts
from ..torch_private.pytrees import tree_map

_ZERO = 1e-3
"""A result that is this share of the plain step's error in float64 is zero."""
_ORDERS = 8
"""Times the plain step's rounding that another order of additions may leave of zero."""
_TIMES_COARSE = 2
"""Times the plain step's distance from float64 that a step in half precision may be off."""
_UNITS = (1,) * 4 + (2,) * 4 + (4,) * 4 + (8,) * 4
"""Units by which each nudge moves numbers: one after another, before a result counts as wrong.

A nudge opens a gate at times only. A sum of hundreds of products, each rounded, is off by several
units.
"""
_TIMES_NUDGED = 2
"""Times the effect of one nudge: a step rounds after each op, and a nudge only before the first."""
_MOST_NUDGED = 0.1
"""A share of the largest entry: a result that is farther off must be the one that a nudge gives.

As where a router sends a row to another expert, whose logit is the same but for rounding: then the
gradients of both experts are others, and a step with nudged numbers that makes the same choice has
the same ones. How far such results are apart says nothing.
"""
_TIMES_COMPILED = 2
"""Times the distance of torch.compile's own step from float64: its sums may be in another order."""
_MOST_COMPILED = 1e-2
"""A share of the largest entry: what is off by more is no rounding, by torch.compile's measure."""


class Float64Step:
    """The results of the plain step in float64, computed when the first of them is asked for.

    Some steps have results that rounding moves far: an input of a ReLU that is zero but for
    rounding opens the gate in one order of additions and closes it in another. Where two steps
    in float32 differ by more than rounding should, the step in float64 tells which one is off.
    Other results are zero but for rounding, as is the running mean behind a second normalisation:
    the plain step has no digits of them, and another order of additions gives others.

    And a sum that cancels is off by the rounding of its terms, which a nudge of weights and inputs
    need not show: batch norms behind a weight take its scale out again, before rounding and after.
    How much the code that inductor makes loses there, torch.compile's own step tells.

    Parameters
    ----------
    run
        Runs the step and returns its results by name, as float64 tensors. Its argument is the
        number of a nudge, or ``None`` for none: see `in_float64`.
    run_compiled
        Runs the plain step by torch.compile, and returns its results in the formats that they have.
        Of use where the planned step is compiled too.

    Attributes
    ----------
    accepted
        Number of results that were accepted.
    planned_off, plain_off
        The largest distances of the planned and of the plain step from float64 among the results
        that were asked for and accepted, as shares of the largest entry. Results that are zero but
        for rounding have no such share.
    nudged_off
        The same distance of the steps with nudged numbers; zero if none was run.
    compiled_off
        The same distance of torch.compile's own step; zero if it was not run.
    """

    def __init__(
        self,
        run: Callable[[int | None], Mapping[str, Tensor]],
        run_compiled: Callable[[], Mapping[str, Tensor]] = dict,
    ) -> None:
        self._run, self._run_compiled = run, run_compiled
        self._results: Mapping[str, Tensor] | None = None
        self._by_nudges: list[dict[str, float]] = []
        self._latest: tuple[int, Mapping[str, Tensor]] = (-1, {})
        # A branch of `torch.cond` has no backward within a mode: one is entered where need be.
        self._around: Callable[[], AbstractContextManager[Any]] = nullcontext
        self.accepted = 0
        self.planned_off = self.plain_off = self.nudged_off = self.compiled_off = 0.0

    def accepts(
        self,
        name: str,
        plain: Tensor,
        planned: Tensor,
        tolerance: float,
        coarsest: torch.dtype | None = None,
    ) -> bool:
        """Whether the result `planned` is as exact as `plain`, or within `tolerance` of float64.

        Or as exact as a nudge of the step's numbers lets it be, if such nudges move most results
        by no more than `tolerance`. A result that is far off must be that of a nudged step. Or as
        exact as torch.compile's own.

        Parameters
        ----------
        name
            The result's.
        tolerance
            A share of the largest entry.
        coarsest
            The half-precision format that the plain step computes in, if any. Then neither step is
            the more exact one but by chance: the planned step may be twice as far off as the plain
            one, or by a unit of that format.
        """
        exact = self._exact.get(name)
        wider = exact is not None and 0.0 < _eps(exact) < _eps(plain)
        if exact is None or not wider or exact.shape != plain.shape:
            return False
        # Of one scale for both: shares of each result's own largest entry would all be 1 at zero.
        largest = max(_most(exact), _most(plain))
        of_plain, of_planned = _distance(exact, plain), _distance(exact, planned)
        if not largest or not isfinite(of_plain) or not isfinite(of_planned):
            return False
        zero = _most(exact) <= _ZERO * of_plain
        times, share = 1, tolerance
        if coarsest is not None:
            times, share = _TIMES_COARSE, max(tolerance, torch.finfo(coarsest).eps)
        enough = _ORDERS * of_plain if zero else max(times * of_plain, share * largest)
        if of_planned > enough:
            if of_planned > _MOST_NUDGED * largest:
                turned = self._nudged_like(name, planned, enough, tolerance)
            else:
                turned = self._nudged_as_far(name, of_planned, tolerance)
            if turned is not None:
                self.nudged_off = max(self.nudged_off, turned / largest)
            elif of_planned <= _MOST_COMPILED * largest:
                of_compiled = self._compiled_distance(name, exact)
                if of_planned > _TIMES_COMPILED * of_compiled:
                    return False
                self.compiled_off = max(self.compiled_off, of_compiled / largest)
            else:
                return False
        self.accepted += 1
        if not zero:
            self.planned_off = max(self.planned_off, of_planned / largest)
            self.plain_off = max(self.plain_off, of_plain / largest)
        return True

    def knows(self, name: str) -> bool:
        """Whether the step in float64 has the result called `name`."""
        return name in self._exact

    @property
    def _exact(self) -> Mapping[str, Tensor]:
        if self._results is None:
            try:
                self._results = self._run(None)
            except Exception:
                self._around = WideGroupedProducts
                try:
                    with self._around():
                        self._results = self._run(None)
                except Exception:  # a model may refuse float64: then nothing is accepted
                    self._results = {}
        return self._results

    def _compiled_distance(self, name: str, exact: Tensor) -> float:
        """How far torch.compile's own result is from float64; zero where it has none to compare."""
        found = self._compiled.get(name)
        if found is None or found.shape != exact.shape:
            return 0.0
        distance = _distance(exact, found)
        return distance if isfinite(distance) else 0.0

    @cached_property
    def _compiled(self) -> Mapping[str, Tensor]:
        try:
            return self._run_compiled()
        except Exception:  # what torch.compile cannot run tells nothing
            return {}

    def _nudged_as_far(self, name: str, of_planned: float, tolerance: float) -> float | None:
        """How far a step with nudged numbers is off, if that is as far as the planned one."""
        for nudge in self._nudges(tolerance):
            nudged = self._by_nudges[nudge].get(name, 0.0)
            if of_planned <= _TIMES_NUDGED * nudged:
                return nudged
        return None

    def _nudged_like(
        self, name: str, planned: Tensor, enough: float, tolerance: float
    ) -> float | None:
        """How far a step with nudged numbers is off, if its result is the planned one's.

        That is within `enough`. Results of one nudge alone are kept: most often, it is the same
        one for all that are asked for.
        """
        kept = [self._latest[0]] if self._latest[0] >= 0 else []
        for nudge in (*kept, *self._nudges(tolerance)):
            if nudge != self._latest[0]:
                self._latest = nudge, self._nudged(nudge)
            found = self._latest[1].get(name)
            if found is None or found.shape != planned.shape:
                continue
            if _distance(found, planned) <= enough:
                return self._by_nudges[nudge].get(name, 0.0)
        return None

    def _nudges(self, tolerance: float) -> Iterator[int]:
        """The numbers of the nudges that are no more than rounding, whose distances are known."""
        for nudge in range(len(_UNITS)):
            if nudge == len(self._by_nudges):
                self._by_nudges.append(self._distances(nudge))
            units = _UNITS[nudge]
            if units > 1 and units * self._by_one_unit() > tolerance:
                return
            yield nudge

    def _by_one_unit(self) -> float:
        """What a nudge by a unit moves the median result, as a share of its largest entry.

        The least of all such nudges: one that opens a gate moves whatever comes behind it.
        """
        assert self._results is not None
        real = {name: exact for name, exact in self._results.items() if _eps(exact)}
        most = {name: _most(exact) or inf for name, exact in real.items()}
        shares = [
            median(distance / most[name] for name, distance in moved.items())
            for moved, units in zip(self._by_nudges, _UNITS, strict=False)
            if units == 1 and moved
        ]
        return min(shares, default=inf)

    def _distances(self, nudge: int) -> dict[str, float]:
        """How far a step with nudged numbers is from the one without, by result."""
        assert self._results is not None
        self._latest = nudge, self._nudged(nudge)
        nudged = self._latest[1]
        return {
            name: _distance(exact, nudged[name])
            for name, exact in self._results.items()
            if name in nudged and nudged[name].shape == exact.shape and _eps(exact)
        }

    def _nudged(self, nudge: int) -> Mapping[str, Tensor]:
        """The results of a step with nudged numbers."""
        self._latest = -1, {}  # room for the new ones
        try:
            with self._around():
                return self._run(nudge)
        except Exception:  # a model may check its own numbers: then nothing is accepted
            return {}


def in_float64(value: Any, nudge: int | None = None) -> Any:
    """A copy of `value`, whose tensors and modules of real or complex numbers are in float64.

    What two modules share, their copies share too.

    Parameters
    ----------
    nudge
        The number of a nudge, which seeds random signs: each number is multiplied by 1 plus or
        minus some units in the last place of its own format: 1 unit for the first 4 nudges, then 2,
        4 and 8.
    """
    known: dict[int, Any] = {}
    signs = None if nudge is None else torch.Generator().manual_seed(nudge)
    units = 0 if nudge is None else _UNITS[nudge]

    def nudged(numbers: Tensor, eps: float) -> Tensor:
        if signs is None:
            return numbers
        sign = torch.randint(0, 2, numbers.shape, generator=signs) * 2 - 1
        return numbers * (1 + units * eps * sign.to(numbers.device))

    def wide(leaf: Any) -> Any:
        if isinstance(leaf, nn.Module):
            narrow = [_eps(held) for held in _held(leaf)]
            module = copy.deepcopy(leaf, known)
            module._apply(_widened)  # type: ignore[no-untyped-call]
            with torch.no_grad():
                for held, eps in zip(_held(module), narrow, strict=True):
                    if eps and signs is not None:
                        held.copy_(nudged(held, eps))
            return module
        if isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex()):
            numbers = nudged(_widened(leaf.detach()), _eps(leaf))
            return numbers.requires_grad_(leaf.requires_grad)
        return leaf

    return tree_map(wide, value)


def _widened(numbers: Tensor) -> Tensor:
    """`numbers` in float64, or in the complex format of two of these."""
    if numbers.is_complex():
        return numbers.to(torch.complex128)
    return numbers.double() if numbers.is_floating_point() else numbers


def _held(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def _distance(exact: Tensor, found: Tensor) -> float:
    """The largest difference among entries that are finite; infinite if others are in each."""
    a, b = (_dense(tensor).to(exact.dtype) for tensor in (exact, found))
    if not torch.equal(a.isfinite(), b.isfinite()):
        return inf
    there = a.isfinite()
    return float((a[there] - b[there]).abs().max()) if bool(there.any()) else inf


def _most(tensor: Tensor) -> float:
    """The largest entry among those that are finite."""
    tensor = _dense(tensor)
    there = tensor[tensor.isfinite()]
    return float(there.abs().max()) if there.numel() else 0.0


def _dense(tensor: Tensor) -> Tensor:
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def _eps(tensor: Tensor) -> float:
    floating = tensor.is_floating_point() or tensor.is_complex()
    return float(torch.finfo(tensor.dtype).eps) if floating else 0.0

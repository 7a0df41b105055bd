"""Comparable times: runs of several functions in turn, with medians and spread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of repeated runs, in seconds.

    Attributes
    ----------
    median_s, low_s, high_s : float
        The median and the quartiles.
    num_runs : int
    """

    median_s: float
    low_s: float
    high_s: float
    num_runs: int

    @classmethod
    def of(cls, times_s: list[float]) -> Timing:
        """Median and quartiles of `times_s`."""
        low, median, high = np.percentile(times_s, (25, 50, 75))
        return cls(float(median), float(low), float(high), len(times_s))


def time_interleaved(
    functions: Mapping[str, Callable[[], Any]],
    *,
    rounds: int = 7,
    warm_up: int = 1,
    device: torch.device | str = "cpu",
    before: Callable[[], Any] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Times of each function, one for each round; every round runs all functions once.

    What slows the machine for a while then slows all functions alike: compare the functions round
    by round (`ratio`). The order rotates from round to round. `before` runs ahead of each run,
    untimed. With `time.process_time` as `clock`, time that other processes take of the cores does
    not count.

    Examples
    --------
    >>> times = time_interleaved({"one": lambda: sum(range(10)), "two": lambda: None}, rounds=3)
    >>> [len(row) for row in times.values()]
    [3, 3]
    """
    names = list(functions)
    prepare = before or (lambda: None)
    for name in names:
        for _ in range(warm_up):
            prepare()
            functions[name]()
    times: dict[str, list[float]] = {name: [] for name in names}
    for round_ in range(rounds):
        turn = round_ % len(names)
        for name in names[turn:] + names[:turn]:
            prepare()
            times[name].append(time_once(functions[name], device, clock))
    return times


def ratio(times_s: list[float], base_s: list[float]) -> Timing:
    """Time as a multiple of `base_s`: the median over rounds of the ratio in each round.

    Rounds in which a coarse clock saw nothing of the base say nothing; 1 where none says anything.
    """
    pairs = zip(times_s, base_s, strict=True)
    return Timing.of([a / b for a, b in pairs if b] or [1.0])


def time_once(
    function: Callable[[], Any],
    device: torch.device | str = "cpu",
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Seconds that `function` takes, its work on `device` included."""
    cuda = torch.device(device).type == "cuda"
    if cuda:
        torch.cuda.synchronize(device)
    started = clock()
    function()
    if cuda:
        torch.cuda.synchronize(device)
    return clock() - started


@contextmanager
def pinned_threads(num_threads: int | None) -> Iterator[None]:
    """Run with `num_threads` of intra-op parallelism; unchanged where ``None``."""
    before = torch.get_num_threads()
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)

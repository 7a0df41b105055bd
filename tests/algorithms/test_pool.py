"""The pool of walkers: one outcome, however many threads there are and however slow."""

from __future__ import annotations

import math
import random
import time

import pytest
from schedsim.algorithms._pool import Pool, RoundPart

from schedsim.plans.effort import Effort


class Numbers:
    """A walker whose best falls with its own random numbers, slowly on some days."""

    def __init__(self, seed: int, sleepy: random.Random) -> None:
        self.random, self.sleepy = random.Random(seed), sleepy
        self.best_s, self.shares = math.inf, []

    @property
    def rank(self):
        return (0, self.best_s)

    def begin(self, number):
        self.shares.append(number)

    def anneal(self, share, work, most_moves):
        moves = min(most_moves, 10)
        self.shares.append(round(share, 9))
        for _ in range(moves):
            self.best_s = min(self.best_s, 1.0 + self.random.random())
        time.sleep(0.001 * self.sleepy.random())
        return min(work, 0.01), moves


def outcome(num_threads, sleep_seed, enough_s, effort):
    """(best of each walker, who ended it, moves, work spent) after three rounds."""
    sleepy = random.Random(sleep_seed)
    walkers = [Numbers(seed, sleepy) for seed in range(5)]
    with Pool(effort, num_threads, enough_s) as pool:
        for number in range(3):
            pool.walk(walkers, RoundPart(number), 1 / (3 - number))
            if pool.winner is not None:
                return walkers.index(pool.winner), pool.winner.best_s, pool.moves, effort.spent
    return [(one.best_s, one.shares) for one in walkers], None, pool.moves, effort.spent


@pytest.mark.parametrize("enough_s", [0.0, 1.004, 1.05])
@pytest.mark.parametrize("options", [{"work": 3.0}, {"work": 1.0, "moves": 777}])
def test_threads_and_delays_change_nothing(enough_s, options):
    """Neither where all work is done, nor where one walker meets what is enough before others."""
    first = outcome(1, 0, enough_s, Effort(**options))
    for num_threads, sleep_seed in ((2, 1), (5, 2), (2, 3)):
        assert outcome(num_threads, sleep_seed, enough_s, Effort(**options)) == first
    assert (first[1] is None) == (enough_s == 0.0)


def test_moves_are_made_to_the_last():
    """777 moves of five walkers in three rounds: none more, none less."""
    assert outcome(2, 0, 0.0, Effort(1.0, moves=777))[2] == 777


def test_the_watchdog_ends_all_walkers():
    """Within a few chunks, whatever work is left; and the effort says that it did."""
    effort = Effort(1e9, time_limit_s=0.05)
    outcome(2, 0, 0.0, effort)
    assert effort.ended_by == "clock"


def test_a_failure_comes_out():
    """An error of a walker comes out as itself."""

    class Failing(Numbers):
        def anneal(self, share, work, most_moves):
            raise ZeroDivisionError("on purpose")

    with Pool(Effort(1.0), 2, 0.0) as pool, pytest.raises(ZeroDivisionError, match="on purpose"):
        pool.walk([Failing(0, random.Random(0))], RoundPart(0), 1.0)

"""In which collective a thread waits."""

from __future__ import annotations

import threading
import time

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.distributed as dist  # noqa: E402
from rank_processes import run_ranks  # noqa: E402
from schedsim.validation.torch_private.waiting_frames import (  # noqa: E402
    collective_that_waits,
    is_in_engine,
)


def _named(rank):
    own, found = vars(dist.Work)["wait"], [collective_that_waits()]

    def wait(work, *timeout):
        found.append(collective_that_waits())
        return own.__get__(work)(*timeout)

    group = dist.new_group([0])
    dist.Work.wait = wait
    try:
        dist.all_reduce(torch.ones(2), group=group)
        dist.all_gather([torch.ones(2)], torch.ones(2), group=group)
    finally:
        dist.Work.wait = own
    return found


def test_the_collective_is_named_with_its_ranks():
    """By the function of torch that waits; outside of one, there is none."""
    assert run_ranks(_named, 1) == [[None, ("all_reduce", (0,)), ("all_gather", (0,))]]


def test_a_thread_that_runs_a_backward_is_seen():
    """As long as no Python runs below it."""
    over = threading.Event()

    def work():
        weight = torch.ones(600, 600, requires_grad=True)
        while not over.is_set():
            (weight @ weight @ weight).sum().backward()

    thread = threading.Thread(target=work)
    thread.start()
    deadline = time.monotonic() + 60.0
    while not is_in_engine(thread.ident) and time.monotonic() < deadline:
        time.sleep(0.001)
    over.set()
    thread.join()
    assert time.monotonic() < deadline
    assert not is_in_engine(threading.get_ident())
    assert not is_in_engine(thread.ident)

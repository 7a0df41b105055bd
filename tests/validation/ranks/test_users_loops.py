"""What happens to loops of real users: a rank that is stopped for a while, or by Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from unittest import mock

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from rank_processes import run_ranks  # noqa: E402
from spread_models import made  # noqa: E402

import schedsim  # noqa: E402

WAYS = {
    "in place, sharded": "norm and head",
    "in place, split": "sequence parallel",
    "by the backend, split": "tensor parallel",
    "by blocks, sharded": "norm and head",
}
STANDSTILL_S, STOPPED_S = 1.5, 6


def _loop(way):
    """A function that runs a step of training and an optimizer's, and one that gives parameters."""
    torch.manual_seed(0)
    model, _, (x, target), loss = made(WAYS[way])
    if way.startswith("by blocks"):
        options = {"level": "block", "effort": 0.2}
        planned = schedsim.rematerialize(model, (x, target), "100%", loss, **options)
        run = lambda: planned(x, target)  # noqa: E731
    else:
        step = model
        if way.startswith("in place"):
            schedsim.rematerialize(model, x, "100%", in_place=True, effort=0.2)
        else:
            options = {"budget": "100%", "effort": 0.2}
            step = torch.compile(model, backend="schedsim", options=options, dynamic=False)
        run = lambda: loss(step(x), target)  # noqa: E731
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step_of_loop():
        run().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step_of_loop


def _stop_for_a_while():
    mine = os.getpid()
    subprocess.Popen(["sh", "-c", f"sleep {STOPPED_S}; kill -CONT {mine}"])
    os.kill(mine, signal.SIGSTOP)


def _slow(rank, way):
    with mock.patch("schedsim.validation.ranks.standstill.STANDSTILL_S", STANDSTILL_S):
        step = _loop(way)
        for number in range(4):
            if number == 2 and rank == 1:
                _stop_for_a_while()
            step()
    return "done"


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_rank_that_is_stopped_for_a_while_is_waited_for(way):
    """Four times as long as ranks stand still before they are told: it does not wait for others."""
    assert run_ranks(_slow, 2, way, timeout_s=100) == ["done", "done"]


def _interrupted(rank, way):
    # Workers of pytest ignore it, and so do the processes that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    step = _loop(way)
    step()
    try:
        if rank == 1:
            threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        while True:
            step()
    except KeyboardInterrupt as error:  # what Python does where nobody catches it
        sys.excepthook(type(error), error, error.__traceback__)
        os._exit(130)
    except RuntimeError as error:
        os._exit(7 if "rank 1" in str(error) and "KeyboardInterrupt" in str(error) else 8)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_ctrl_c_on_one_rank_ends_all(way):
    """With a line that says which rank was interrupted, not by gloo's lost connection."""
    assert run_ranks(_interrupted, 2, way, timeout_s=60, allow_exit=True) == [7, 130]


def _like_torchtitan(rank):
    """FSDP2 around split layers, each replica with its own batches, of two sizes, accumulated."""
    torch.manual_seed(0)
    model, _, (x, _), loss = made("split and sharded")
    plain = made("split and sharded")[0]
    plain.load_state_dict(model.state_dict())
    torch.manual_seed(rank // 2)
    sizes = (256, 256, 256, 256, 128 + 64 * (rank // 2), 256)
    batches = [tuple(torch.randint(100, (n,)) for _ in range(2)) for n in sizes]
    schedsim.rematerialize(model, x, "95%", in_place=True, effort=0.2)
    for one in (plain, model):
        optimizer = torch.optim.AdamW(one.parameters())
        for number, (ids, targets) in enumerate(2 * batches):
            one.set_requires_gradient_sync(number % 2 == 1)
            loss(one(ids), targets).backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
    pairs = zip(plain.parameters(), model.parameters(), strict=True)
    return all(torch.equal(a.to_local(), b.to_local()) for a, b in pairs)


@pytest.mark.slow
def test_a_loop_like_torchtitan_s_trains_as_without_a_budget():
    """To the bit, also where replicas have other batches."""
    assert all(run_ranks(_like_torchtitan, 4, timeout_s=200))

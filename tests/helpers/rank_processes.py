"""Processes of one process group, for tests: started, watched by the clock, and ended for good."""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

TIMEOUT_S = 180.0
"""Seconds after which a test's processes are killed, without the time for which they wait for a
core: many times what any of them takes."""

LONGEST_S = 3600.0
"""Seconds after which they are killed whatever they wait for."""


# What a rank would import by itself, in most of a second: torch when it is first traced, we when
# we first plan.
PRELOADED = [
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch._dynamo",
    "torch._functorch.aot_autograd",
    "torch._functorch.partitioners",
    "torch.onnx",
    "torch.profiler",
    "schedsim",
    "schedsim.algorithms.auto",
    "schedsim.algorithms.chains.frontier",
    "schedsim.algorithms.graphs.local_search",
    "schedsim.validation.measure",
    "schedsim.validation.rematerialize",
]


class RankProcessError(AssertionError):
    """A rank failed, died or hung; the message has what it left."""


def run_ranks(function, num_ranks, *arguments, timeout_s=TIMEOUT_S, allow_exit=False):
    """``function(rank, *arguments)`` in `num_ranks` processes of a gloo group; what each returns.

    Raises `RankProcessError` where one raises, dies, or is not done in time; none is left behind.
    With `allow_exit`, the exit status takes the place of the result of a rank that ends its
    process.
    """
    # Ranks are forked from a process that has imported much and started no thread.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with tempfile.TemporaryDirectory() as folder:
        rows = [(rank, num_ranks, folder, function, arguments) for rank in range(num_ranks)]
        processes = [context.Process(target=_rank, args=row, daemon=True) for row in rows]
        try:
            for process in processes:
                process.start()
            _wait(processes, folder, timeout_s)
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.join()
        return [
            _result(folder, rank, process, allow_exit) for rank, process in enumerate(processes)
        ]


def _wait(processes, folder, timeout_s):
    began = time.monotonic()
    failed_at, queued = None, dict.fromkeys(range(len(processes)), 0.0)
    while True:
        for process in processes:
            process.join(0.05)
        if not any(process.is_alive() for process in processes):
            return
        now = time.monotonic()
        if failed_at is None and any(process.exitcode for process in processes):
            failed_at = now
        # On a busy machine a rank is slow; one that hangs waits for no core.
        for k, process in enumerate(processes):
            queued[k] = max(queued[k], _queued_s(process.pid))  # nobody counts for one that ended
        queued_s = sum(queued.values())
        # Where one has died, the others have some seconds to say what they saw.
        late = failed_at is not None and now > failed_at + 60.0 + queued_s
        if late or now > began + min(timeout_s + queued_s, LONGEST_S):
            _ask_for_stacks(processes)
            stacks = [_text(folder, f"stack{rank}") for rank in range(len(processes))]
            errors = [_text(folder, f"error{rank}") for rank in range(len(processes))]
            raise RankProcessError("\n".join(["the ranks hang", *errors, *stacks]))


def _queued_s(pid):
    """Seconds for which a process was ready to run, and others did; 0 where nobody counts them."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _ask_for_stacks(processes):
    for process in processes:
        if process.is_alive():
            os.kill(process.pid, signal.SIGUSR1)
    time.sleep(2.0)


def _result(folder, rank, process, allow_exit):
    import pickle

    path = Path(folder, f"result{rank}")
    if process.exitcode == 0 and path.exists():
        return pickle.loads(path.read_bytes())
    if allow_exit and not Path(folder, f"error{rank}").exists():
        return process.exitcode
    errors = _text(folder, f"error{rank}")
    raise RankProcessError(f"rank {rank} ended with {process.exitcode}\n{errors}")


def _text(folder, name):
    path = Path(folder, name)
    return f"-- {name}\n{path.read_text()}" if path.exists() else ""


def _rank(rank, num_ranks, folder, function, arguments):
    import pickle

    import torch
    import torch.distributed as dist

    stack = open(Path(folder, f"stack{rank}"), "w")  # noqa: SIM115 - for the fault handler
    faulthandler.enable(stack)
    faulthandler.register(signal.SIGUSR1, file=stack)  # so that a test that hangs says where
    torch.set_num_threads(1)
    path = Path(folder, "store")
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=num_ranks)
    try:
        found = function(rank, *arguments)
        Path(folder, f"result{rank}").write_bytes(pickle.dumps(found))
        _wait_for_others(folder, num_ranks)
    except BaseException:
        Path(folder, f"error{rank}").write_text(traceback.format_exc())
        sys.stderr.flush()
        os._exit(1)  # peers see at once that it is gone
    end_process_group()


def _wait_for_others(folder, num_ranks):
    """Let no rank leave while another still works with it; by files, as the group may be broken."""
    deadline = time.monotonic() + LONGEST_S
    while time.monotonic() < deadline:
        names = os.listdir(folder)
        done = [rank for rank in range(num_ranks) if {f"result{rank}", f"error{rank}"} & set(names)]
        if len(done) == num_ranks:
            return
        time.sleep(0.02)


def end_process_group():
    """Destroy the process group, its threads included.

    A wrapped model holds the group in circles of references. Left to the end of the interpreter,
    the group's threads may still be dropping tensors when there is no interpreter left to drop them
    in, which aborts the process ("terminate called without an active exception").
    """
    import torch.distributed as dist

    gc.collect()
    dist.destroy_process_group()
    gc.collect()

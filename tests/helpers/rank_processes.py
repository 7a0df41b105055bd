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


ONCE = "SCHEDSIM_RANKS_ONCE"
"""Set, to anything, where each call shall have processes of its own, and see them end."""


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

    The processes serve later calls of as many ranks too, each call in a process group of its own:
    starting and warming them up takes longer than most of what they are asked. They stay together,
    each the same rank, so that all ranks of a call have served the same calls before. Those of a
    call that has failed, or in which one has ended, serve no other.
    """
    workers = _idle.pop(num_ranks, [])
    with tempfile.TemporaryDirectory() as folder:
        try:
            if not all(worker.process.is_alive() for worker in workers):
                _end(workers)
            while len(workers) < num_ranks:
                workers.append(_Worker())
            for rank, worker in enumerate(workers):
                worker.begin(rank, num_ranks, folder, function, arguments)
            _wait(workers, folder, timeout_s)
            found = [
                _result(folder, rank, worker, allow_exit) for rank, worker in enumerate(workers)
            ]
            if all(worker.is_done for worker in workers):
                if os.environ.get(ONCE):
                    for rank, worker in enumerate(workers):
                        worker.end(rank)
                else:
                    _idle[num_ranks] = workers
                workers = []
            return found
        finally:
            _end(workers)


_idle = {}
"""Number of ranks -> the workers that wait for a call of so many, in the order of their ranks."""


def _end(workers):
    """Kill all `workers`, and leave none."""
    for worker in workers:
        worker.process.kill()
    for worker in workers:
        worker.process.join()
    workers.clear()


class _Worker:
    """A process that is a rank of one call after the other."""

    def __init__(self):
        # It is forked from a process that has imported much and started no thread.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.is_done = self.has_ended = False

    def begin(self, *call):
        """Begin a call."""
        self.is_done = False
        self.pipe.send(call)

    def end(self, rank):
        """Let the process end by itself."""
        self.pipe.close()
        self.process.join(60.0)
        code = self.process.exitcode
        if code != 0:
            self.process.kill()
            raise RankProcessError(f"rank {rank} ended with {code} after its work was done")

    def look(self, seconds):
        """Whether the process is done with the call, or has ended."""
        if not (self.is_done or self.has_ended) and self.pipe.poll(seconds):
            try:
                self.is_done = bool(self.pipe.recv())
            except (EOFError, ConnectionResetError):
                self.has_ended = True
                self.process.join()
        return self.is_done or self.has_ended


def _wait(workers, folder, timeout_s):
    began = time.monotonic()
    failed_at = None
    before = [_queued_s(worker.process.pid) for worker in workers]
    queued = list(before)
    while True:
        if all(worker.look(0.05) for worker in workers):
            return
        now = time.monotonic()
        if failed_at is None and any(worker.process.exitcode for worker in workers):
            failed_at = now
        # On a busy machine a rank is slow; one that hangs waits for no core.
        for k, worker in enumerate(workers):
            # Nobody counts for one that ended.
            queued[k] = max(queued[k], _queued_s(worker.process.pid))
        queued_s = sum(queued) - sum(before)
        # Where one has died, the others have some seconds to say what they saw.
        late = failed_at is not None and now > failed_at + 60.0 + queued_s
        if late or now > began + min(timeout_s + queued_s, LONGEST_S):
            _ask_for_stacks([worker.process for worker in workers])
            stacks = [_text(folder, f"stack{rank}") for rank in range(len(workers))]
            errors = [_text(folder, f"error{rank}") for rank in range(len(workers))]
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


def _result(folder, rank, worker, allow_exit):
    import pickle

    path, code = Path(folder, f"result{rank}"), worker.process.exitcode
    if not code and path.exists():
        return pickle.loads(path.read_bytes())
    if allow_exit and not Path(folder, f"error{rank}").exists():
        return code
    errors = _text(folder, f"error{rank}")
    raise RankProcessError(f"rank {rank} ended with {code}\n{errors}")


def _text(folder, name):
    path = Path(folder, name)
    return f"-- {name}\n{path.read_text()}" if path.exists() else ""


def _serve(pipe):
    """Run calls until nobody is left to send any."""
    import torch

    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()
    while True:
        try:
            call = pipe.recv()
        except EOFError:
            return
        environment, numbers = dict(os.environ), torch.get_rng_state()
        _rank(*call)
        pipe.send("done")
        os.environ.clear()
        os.environ.update(environment)
        torch.set_rng_state(numbers)
        # Dynamo traces a function a few times only, and would count those of earlier tests.
        torch._dynamo.reset()
        # What is there now is no garbage of later calls.
        gc.collect()
        gc.freeze()


def _rank(rank, num_ranks, folder, function, arguments):
    """Run one call; its result, or its error, is in `folder` then."""
    import pickle

    import torch.distributed as dist

    with open(Path(folder, f"stack{rank}"), "w") as stack:
        faulthandler.enable(stack)
        faulthandler.register(signal.SIGUSR1, file=stack)  # so that a test that hangs says where
        path = Path(folder, "store")
        dist.init_process_group(
            "gloo", init_method=f"file://{path}", rank=rank, world_size=num_ranks
        )
        try:
            found = function(rank, *arguments)
            Path(folder, f"result{rank}").write_bytes(pickle.dumps(found))
            _wait_for_others(folder, num_ranks)
        except BaseException:
            Path(folder, f"error{rank}").write_text(traceback.format_exc())
            sys.stderr.flush()
            os._exit(1)  # peers see at once that it is gone
        end_process_group()
        faulthandler.unregister(signal.SIGUSR1)
        faulthandler.disable()


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

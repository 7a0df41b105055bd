"""Runs over processes by joblib: each result is written to the file as soon as its run ends."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..api import try_plan
from ..errors import MissingDependencyError, SchedsimError
from .results import SCHEMA, ResultFile, check_rows, encode, in_order, write_whole
from .runs import Run

if TYPE_CHECKING:
    from .cluster_runs import ClusterRun

BACKENDS = ("loky", "dask", "ray")


def run_one(run: Run | ClusterRun) -> tuple[dict[str, Any], dict[str, Any]]:
    """The row of `run`, and its measured times, which differ every time.

    An exception becomes a row too, and the other runs go on. An interrupt ends all runs, and a
    search that it cuts short is not a result.
    """
    started = time.perf_counter()
    row: dict[str, Any] = {"schema": SCHEMA, **run.head()}
    try:
        row |= _planned(run) if isinstance(run, Run) else run.outcome()
    except Exception as error:  # no error of a planner may end the sweep
        message = error.message if isinstance(error, SchedsimError) else str(error)
        row |= {
            "status": "error",
            "error": {"type": type(error).__name__, "message": " ".join(message.split())},
            "reproducible": not isinstance(error, MemoryError),
        }
    took_s = time.perf_counter() - started
    measured = {
        "schema": "schedsim.timing/1",
        "key": run.key,
        "planning_s": took_s,
        "host": socket.gethostname(),
        "ended_at_s": time.time(),
    }
    return row, measured


def _planned(run: Run) -> dict[str, Any]:
    """The result of the planner."""
    arguments = dict(run.options)
    if run.seed is not None:
        arguments["seed"] = run.seed
    plan = try_plan(run.workload, run.budget_bytes, run.planner, **arguments)
    if plan.search.interrupted:
        raise KeyboardInterrupt
    replay = None if plan.schedule is None else plan.simulate(run.workload)
    return {
        "status": plan.status,
        "chosen": plan.found_by,
        "peak_bytes": plan.peak_bytes,
        "makespan_s": plan.makespan_s,
        "store_all_s": plan.store_all_s,
        "overhead": plan.overhead,
        "lower_bound_s": plan.lower_bound_s,
        "bound_scope": str(plan.bound_scope),
        "gap": plan.gap,
        "num_recomputed": None if replay is None else replay.num_recomputed,
        "min_feasible_bytes": plan.min_feasible_bytes,
        "reproducible": plan.search.reproducible,
        "ended_by": plan.search.ended_by,
    }


def run_sweep(
    runs: Sequence[Run | ClusterRun],
    path: str,
    *,
    num_jobs: int = 1,
    backend: str = "loky",
    address: str | None = None,
    retry_errors: bool = False,
    on_row: Callable[[dict[str, Any], int], None] = lambda row, num_done: None,
) -> list[dict[str, Any]]:
    """The rows of `runs`, in order; runs that the file at `path` already has are skipped.

    Parameters
    ----------
    num_jobs
        Number of processes; -1 for one per core. A cluster uses its own workers.
    backend, address
        ``loky``: processes on this machine. ``dask`` or ``ray``: the cluster at `address`; without
        an address, a cluster started on this machine.
    retry_errors
        Whether to repeat runs that ended with an error.
    on_row
        Called with each new row and the number of runs done.

    Raises
    ------
    SchedsimError
        Another sweep is writing the file, or the file is not a results file.
    MissingDependencyError
        The backend is not installed.

    Notes
    -----
    Only this process writes the file and holds its lock; a kill loses the runs in flight. With
    several ``loky`` processes, a run whose process dies gives a row with an error. Planning times
    are appended to ``PATH.timings``, one line per run.
    """
    with ResultFile(path) as file:
        check_rows(file.rows.values(), path)
        if retry_errors:
            failed = [key for key, row in file.rows.items() if row.get("status") == "error"]
            for key in failed:
                del file.rows[key]
        todo = [run for run in runs if run.key not in file.rows]
        num_done = len(runs) - len(todo)
        timings_path = f"{path}.timings"
        if todo:
            timings = os.open(timings_path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                size = os.fstat(timings).st_size
                if size and os.pread(timings, 1, size - 1) != b"\n":
                    os.write(timings, b"\n")  # a kill cut off the last line
                for row, measured in _results(todo, num_jobs, backend, address):
                    write_whole(timings, encode(measured))
                    file.append(row)
                    num_done += 1
                    on_row(row, num_done)
            finally:
                os.close(timings)
        heads = {run.key: run.head() for run in runs}
        rows = in_order([run.key for run in runs], heads, file.rows)
        file.finish(rows)
        return rows[: len(runs)]


def _results(
    runs: Sequence[Run | ClusterRun], num_jobs: int, backend: str, address: str | None
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The result of `run_one` for each run, in the order in which runs end."""
    if backend != "loky":
        yield from _by_cluster(runs, num_jobs, backend, address)
        return
    if address is not None:
        raise SchedsimError(
            f"--address {address} needs a cluster", hint="add --backend dask or ray"
        )
    if num_jobs == 1 or len(runs) == 1:
        yield from map(run_one, runs)
    else:
        yield from _by_processes(runs, num_jobs if num_jobs > 0 else os.cpu_count() or 1)


def _by_processes(
    runs: Sequence[Run | ClusterRun], num_jobs: int
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Run on loky's processes directly, so that a run whose process dies becomes a row, too.

    When a process dies, the runs in flight are repeated one at a time, to find the one that killed
    it.
    """
    from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, wait

    from joblib.externals.loky import ProcessPoolExecutor

    todo: deque[Run | ClusterRun] = deque(runs)
    suspects: deque[Run | ClusterRun] = deque()
    while todo or suspects:
        alone = bool(suspects)
        source, room = (suspects, 1) if alone else (todo, num_jobs)
        pool = ProcessPoolExecutor(room)
        pending: dict[Any, Run | ClusterRun] = {}
        broken = False
        try:
            while pending or (source and not broken):
                while source and not broken and len(pending) < room:
                    run = source.popleft()
                    pending[pool.submit(_run_beside, run, os.getpid())] = run
                for future in wait(pending, return_when=FIRST_COMPLETED).done:
                    run = pending.pop(future)
                    try:
                        result = future.result()
                    except BrokenExecutor:
                        broken = True
                        if alone:
                            yield _row_of_the_dead(run)
                        else:
                            suspects.append(run)
                    else:
                        yield result
        finally:
            pool.shutdown(wait=False, kill_workers=True)


def _row_of_the_dead(run: Run | ClusterRun) -> tuple[dict[str, Any], dict[str, Any]]:
    """The row of a run whose process died."""
    error = {"type": "ProcessDied", "message": "its process died, perhaps for lack of memory"}
    row = {"schema": SCHEMA, **run.head(), "status": "error", "error": error, "reproducible": False}
    return row, {"schema": "schedsim.timing/1", "key": run.key, "ended_at_s": time.time()}


def _by_cluster(
    runs: Sequence[Run | ClusterRun], num_jobs: int, backend: str, address: str | None
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Run by a backend that another package has registered with joblib."""
    import joblib

    with _cluster(backend, address, num_jobs):
        width = num_jobs if num_jobs > 1 else -1
        # Batches of one run: a crash would lose all results of a larger batch.
        if backend == "dask":
            parallel = joblib.Parallel(n_jobs=width, batch_size=1, return_as="generator_unordered")
            yield from parallel(joblib.delayed(run_one)(run) for run in runs)
            return
        # Ray's backend returns all results at once, so a wave has only as many runs as are in
        # flight.
        wave = joblib.effective_n_jobs(width)
        with joblib.Parallel(n_jobs=width, batch_size=1) as parallel:
            for first in range(0, len(runs), wave):
                yield from parallel(
                    joblib.delayed(run_one)(run) for run in runs[first : first + wave]
                )


@contextmanager
def _cluster(backend: str, address: str | None, num_jobs: int) -> Iterator[None]:
    """Set up joblib's `backend` for the runs inside."""
    import joblib

    if backend == "dask":
        try:
            from distributed import Client
        except ImportError as error:
            raise MissingDependencyError(
                "--backend dask needs dask and distributed", hint="pip install 'schedsim[dask]'"
            ) from error
        local = {
            "n_workers": num_jobs if num_jobs > 0 else os.cpu_count(),
            "threads_per_worker": 1,
            "dashboard_address": None,
        }
        with Client(address) if address else Client(**local), joblib.parallel_config("dask"):
            yield
    elif backend == "ray":
        try:
            import ray
            from ray.util.joblib import register_ray
        except ImportError as error:
            raise MissingDependencyError(
                "--backend ray needs ray", hint="pip install 'schedsim[ray]'"
            ) from error
        local = {"num_cpus": num_jobs if num_jobs > 0 else None, "include_dashboard": False}
        ray.init(log_to_driver=False, **({"address": address} if address else local))
        register_ray()
        try:
            with joblib.parallel_config("ray"):
                yield
        finally:
            ray.shutdown()
    else:
        raise SchedsimError(f"backend {backend!r} is unknown", hint=f"one of {', '.join(BACKENDS)}")


_watched = False


def _run_beside(run: Run | ClusterRun, parent: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """`run_one` in a process that ends when its `parent` is gone."""
    global _watched
    if not _watched and os.getppid() == parent:
        _watched = True
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    return run_one(run)


def _end_with(parent: int) -> None:
    """Watch the parent: a killed parent cannot end its processes, so each process ends itself."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)

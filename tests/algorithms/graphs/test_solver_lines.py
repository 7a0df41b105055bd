"""What the solver prints in spite of its options stays out of a program's output."""

from __future__ import annotations

import ctypes
import sys
import threading

import numpy as np
import pytest
from schedsim.algorithms.graphs._milp import Milp
from schedsim.algorithms.graphs._solver_lines import without_solver_lines

from schedsim.plans.effort import Effort

LINE = b"HighsMipSolverData::transformNewIntegerFeasibleSolution tmpSolver.run();"

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")


def written(capfd) -> str:
    ctypes.CDLL(None).fflush(None)
    return capfd.readouterr().out


def test_only_the_solvers_line_is_dropped(capfd):
    """Lines of C code around it and within are written, at the end; Python's at once."""
    library = ctypes.CDLL(None)
    library.puts(b"before")
    with without_solver_lines():
        library.puts(LINE)
        library.puts(b"within")
        print("python", flush=True)
        assert written(capfd) == "before\npython\n"
    library.puts(b"after")
    assert written(capfd) == "within\nafter\n"


def test_solvers_in_threads_share_the_stream(capfd):
    """The first that ends does not let the other's line out; an error puts all back, too."""
    library = ctypes.CDLL(None)
    entered, go_on = threading.Event(), threading.Event()

    def longer() -> None:
        with without_solver_lines():
            entered.set()
            go_on.wait(10)
            library.puts(LINE)

    thread = threading.Thread(target=longer)
    with pytest.raises(ZeroDivisionError), without_solver_lines():  # noqa: PT012
        thread.start()
        assert entered.wait(10)
        raise ZeroDivisionError
    go_on.set()
    thread.join()
    library.puts(b"after")
    assert written(capfd) == "after\n"


def test_programs_are_solved_without_the_line(capfd, monkeypatch):
    """A solver that prints it, in the place of HiGHS."""
    from scipy import optimize

    solve = optimize.milp

    def printing(*args, **options):
        ctypes.CDLL(None).puts(LINE)
        return solve(*args, **options)

    monkeypatch.setattr(optimize, "milp", printing)
    program = Milp()
    column = program.variables(1, cost=1.0, integral=True)
    program.placed(1, (0, column, 1.0), lb=0.5, ub=np.inf)
    assert program.solve(Effort(1.0)).bound == pytest.approx(1)
    assert written(capfd) == ""

"""The best values of a part of the choices of a merged model, while all others stay."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ._merged_model import MergedModel
from ._solver_lines import without_solver_lines

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# The solver may stop that close to the best of a program: proofs take longer than finds.
_GAP = 1e-3


@dataclass(frozen=True, slots=True)
class Freed:
    """What a program came to.

    Attributes
    ----------
    values : (free,)
        Better values of the free choices; ``None`` where none were found.
    nonzeros
        Of its matrix.
    is_solved
        Whether it ended within its first node.
    """

    values: Floats | None
    nonzeros: int
    is_solved: bool


def solve_freed(
    model: MergedModel, x: Floats, free: Ints, time_limit_s: float | None, least_gain: float = 0.0
) -> Freed:
    """Look for better values of the variables `free` of the point `x`, in one node of the solver.

    Parameters
    ----------
    least_gain
        Share of the cost of the free choices that a better point saves at least.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array, vstack

    cost, fixed = model.cost[free], x.copy()
    fixed[free] = 0.0
    matrix, room = model.matrix[:, free].tocsr(), model.most - model.matrix @ fixed
    tight = np.flatnonzero(matrix.maximum(0).sum(axis=1) > room + 1e-9)
    matrix = vstack([matrix[tight], csr_array(cost[None, :])])
    known = float(cost @ x[free])
    options: dict[str, float | int] = {"node_limit": 1, "mip_rel_gap": _GAP}
    if time_limit_s is not None:
        options["time_limit"] = max(0.01, time_limit_s)
    most = np.append(room[tight], known * (1.0 - least_gain))
    try:
        with without_solver_lines():
            found = milp(
                cost,
                integrality=np.ones(free.size),
                bounds=Bounds(0.0, 1.0),
                constraints=LinearConstraint(matrix, -np.inf, most),
                options=options,
            )
    except ValueError:  # HiGHS has raised "vector::reserve" on programs like others
        return Freed(None, int(matrix.nnz), False)
    values = np.round(found.x) if found.x is not None else None
    if values is not None and cost @ values >= known * (1 - 1e-9):
        values = None
    none_is_better = found.status == 2 and least_gain > 0.0
    return Freed(values, int(matrix.nnz), found.status == 0 or none_is_better)

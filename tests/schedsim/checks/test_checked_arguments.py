"""Whatever is passed to a public function, one clear line says what is wrong with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pytest

import schedsim
from schedsim import Chain, Graph, Op, Schedule, Stage
from schedsim.checks.checked_arguments import check_arguments, checked
from schedsim.errors import SchedsimError

CHAIN = Chain.from_arrays(
    "two", 4, forward_s=[1, 1], backward_s=[2, 2], output_bytes=[4, 4], saved_bytes=[10, 10]
)
GRAPH = CHAIN.graph
PLAN = schedsim.plan(CHAIN, 26)
WRONG: tuple[Any, ...] = (
    *(None, -1, 1.5, math.nan, "no-such", b"x", [], {}, object(), True, 10**30),
    *(["x"], (1, 2), {"x": 1}, {1: "x"}, [None], lambda: None, int),
)


def _stage(**given: Any) -> Chain:
    return Chain("c", 1, (Stage(**given),))


def _op(**given: Any) -> Graph:
    return Graph("g", (Op(**given), Op("b", "backward", reads=("t",))))


def _planner(name: str, **options: Any) -> tuple[Callable[..., Any], dict[str, Any]]:
    return schedsim.plan, {"workload": CHAIN, "budget_bytes": 26, "planner": name, **options}


CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "plan": _planner(
        "auto",
        allocator="exact",
        allocator_options={},
        effort=0.1,
        seed=0,
        order=None,
        max_moves=10,
        link="16B/s",
        host_bytes=100,
        host_latency_s=0.0,
    ),
    "variants": _planner("auto", allow=("quantize",)),
    "graph": (
        schedsim.plan,
        {"workload": GRAPH, "budget_bytes": 26, "planner": "local_search", "effort": 0.05}
        | {"gap": 0.1, "order": "free", "seed": 0, "max_moves": 10, "time_limit_s": 1.0},
    ),
    "rotor": _planner("rotor", num_slots=10),
    "hrevolve": _planner("hrevolve", levels=((1, 0.1, 0.1),)),
    "periodic": _planner("periodic", num_segments=1),
    "bisection": _planner("bisection", depth=1),
    "revolve": _planner("revolve", num_slots=1),
    "chen_greedy": _planner("chen_greedy", search="all"),
    "frontier": _planner("frontier", max_points=1000, max_work=10**6, allow=()),
    "simulate": (
        schedsim.simulate,
        {"workload": GRAPH, "schedule": PLAN.schedule, "capacities": None},
    ),
    "compare": (
        schedsim.compare,
        {"workload": CHAIN, "budget_bytes": 26, "planners": ["store_all", "rotor"]},
    ),
    "certify": (schedsim.certify, {"workload": CHAIN, "plan": PLAN, "effort": 0.1}),
    "allocate": (
        schedsim.allocate,
        {"simulation": PLAN.simulate(CHAIN), "allocator": "cuda-caching"},
    ),
    "explain": (schedsim.explain, {"workload": CHAIN, "schedule": PLAN.schedule}),
    "pareto": (schedsim.pareto, {"workload": CHAIN, "planner": "rotor", "budgets": [26]}),
    "save": (schedsim.save, {"item": PLAN, "path": "plan.json"}),
    "load": (schedsim.load, {"path": "plan.json"}),
    "Chain": (Chain, {"name": "c", "input_bytes": 1, "stages": CHAIN.stages, "loss_s": 0.0}),
    "from_arrays": (
        Chain.from_arrays,
        {"name": "c", "input_bytes": 1, "forward_s": [1], "backward_s": [1]}
        | {"output_bytes": [1], "saved_bytes": [1], "forward_workspace_bytes": [0]},
    ),
    "Stage": (
        _stage,
        {"name": "s", "forward_s": 1.0, "backward_s": 1.0, "output_bytes": 1, "saved_bytes": 2}
        | {"forward_workspace_bytes": 0, "saving_workspace_bytes": 0, "variants": ()},
    ),
    "Op": (
        _op,
        {"name": "s", "phase": "forward", "time_s": 1.0, "workspace_bytes": 0, "reads": ()}
        | {"writes": {"t": 1}, "optional": (), "in_place": {}, "stream": "compute", "pools": {}},
    ),
    "Graph": (
        Graph,
        {"name": "g", "ops": GRAPH.ops, "inputs": {"a0": 4}, "static_bytes": 0, "results": ()}
        | {"pool_static_bytes": {}, "input_pools": {}, "variants": ()},
    ),
    "Schedule": (Schedule, {"op_names": ("a",), "runs": [0]}),
    "from_names": (Schedule.from_names, {"names": ["a"]}),
    "store_all": (Schedule.store_all, {"workload": CHAIN}),
    "plan.simulate": (PLAN.simulate, {"workload": CHAIN, "capacities": None}),
}


@pytest.mark.filterwarnings("ignore::schedsim.errors.PlannerSkippedWarning")
@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_argument_gets_one_clear_line(call, tmp_path, monkeypatch):
    """Never an error from deep inside, which says nothing about the argument."""
    monkeypatch.chdir(tmp_path)
    function, right = CALLS[call]
    for name in right:
        for wrong in WRONG:
            if name == "planner" and callable(wrong) and wrong is not int:
                continue  # a planner of one's own, whose errors are its own
            error = _error_of(function, {**right, name: wrong})
            clear = error is None or isinstance(error, SchedsimError | OSError | ValueError)
            if not clear or "\n" in str(error or "").strip():
                pytest.fail(f"{call}: {name}={wrong!r}: {type(error).__name__}: {error}")


def _error_of(function: Callable[..., Any], given: Mapping[str, Any]) -> Exception | None:
    try:
        function(**given)
    except Exception as error:
        return error
    return None


@checked
def _takes(
    count: int = 0,
    share: float = 0.0,
    word: Literal["a", "b"] = "a",
    sizes: Sequence[int] = (),
    names: Collection[str] = (),
    named: Mapping[str, int] | None = None,
    anything: Any = None,
) -> str:
    return "taken"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"count": 1.5}, "count 1.5 is not a whole number"),
        ({"count": True}, "count True is not a whole number"),
        ({"share": "x"}, "share 'x' is not a number"),
        ({"word": "c"}, "word 'c' is not 'a' or 'b'"),
        ({"sizes": "12"}, "sizes '12' is not a list"),
        ({"sizes": ["x"]}, "sizes ['x'] is not a list"),
        ({"named": ["x"]}, "named ['x'] is not a dict or None"),
    ],
)
def test_the_line_names_argument_value_and_what_it_may_be(given, said):
    """By the annotation."""
    with pytest.raises(SchedsimError) as caught:
        _takes(**given)
    assert caught.value.message == said


@pytest.mark.parametrize(
    "given",
    [
        {"count": np.int64(3), "share": np.float32(0.5), "sizes": np.arange(3)},
        {"share": 3, "sizes": [np.int32(1)], "names": "a,b"},
        {"names": {"a"}, "named": {"x": 1}, "anything": object()},
    ],
)
def test_what_does_as_well_is_taken(given):
    """Numbers of numpy, arrays for lists, and names that the function splits itself."""
    assert _takes(**given) == "taken"


def test_a_name_without_an_annotation_is_left_to_the_function():
    """As is one that the function does not have."""
    check_arguments(lambda x: x, {"x": object(), "y": 3})

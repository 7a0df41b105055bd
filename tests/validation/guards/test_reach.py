"""Which Python counts as a step's own: not what the garbage collector runs in the middle of one."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.guards.reach import CodeRun  # noqa: E402

import schedsim  # noqa: E402

ended = 0
WEIGHT = 2.0


def count_collections(phase: str, _: dict[str, int]) -> None:
    """As profilers and test frameworks note when the collector ran."""
    global ended
    ended += count_one(phase)


def count_one(phase: str) -> int:
    """Called by the callback alone."""
    return int(phase == "stop")


class Mourned:
    """Has a finaliser, and is in a circle that only the collector finds."""

    def __init__(self) -> None:
        self.circle = self

    def __del__(self) -> None:
        global ended
        ended += 1


def own() -> float:
    """What a step computes after a collection."""
    return WEIGHT


@pytest.fixture
def counted():
    """The callback is called in every collection."""
    gc.callbacks.append(count_collections)
    try:
        yield
    finally:
        gc.callbacks.remove(count_collections)


def test_what_the_collector_runs_is_not_of_the_step(counted):
    """Callbacks, what they call and finalisers are left out; code around a collection counts."""
    before = ended, list(gc.callbacks)
    with CodeRun() as run:
        Mourned()
        gc.collect(0)
        own()
    # Its stop of one collection, and one finaliser.
    assert ended >= before[0] + 2
    assert gc.callbacks == before[1]
    names = {code.co_name for code in run.codes}
    assert {"__init__", "own"} <= names
    assert not {"count_collections", "count_one", "__del__"} & names
    # The callbacks' global is no state of the step, the step's is.
    read = {name for scope, names in run.reach().scopes if scope is globals() for name in names}
    assert "WEIGHT" in read
    assert "ended" not in read


class Collecting(torch.nn.Module):
    """Large graphs of Python objects make the collector run in any forward; this one makes sure."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Three layers."""
        gc.collect(0)
        return self.layers(x)


@pytest.mark.parametrize("level", ["op", "block"])
def test_a_callback_of_the_collector_does_not_change_the_step(counted, level):
    """What it counts goes on between steps: no capture is refused or made again for it."""
    model, x = Collecting(), torch.randn(4, 8)
    module = schedsim.rematerialize(model, (x,), "100%", lambda y: y.square().sum(), level=level)
    for _ in range(3):
        gc.collect(0)
        module(x).backward()
    assert module.level == level

"""What a capture gives: costs filled in, bytes added, and what cannot be run said."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.capture import capture  # noqa: E402
from schedsim.validation.costs.table import Costs  # noqa: E402
from torch import nn  # noqa: E402

from schedsim import Schedule, simulate  # noqa: E402
from schedsim.errors import InvalidScheduleError, UnsupportedError  # noqa: E402


@pytest.fixture(scope="module")
def captured():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    return capture(model, (torch.randn(3, 4),), lambda out: out.square().mean())


def test_costs_are_filled_in_by_name(captured):
    """Ops that are not named keep theirs; tensors found in another size are corrected."""
    first, second = captured.graph.op_names[:2]
    tensor = next(iter(captured.graph.ops[0].writes))
    costs = Costs({first: 2.0, "absent": 9.0}, {second: 64}, "by hand", {tensor: 4096})
    graph = captured.with_costs(costs).graph
    assert [graph.ops[i].time_s for i in (0, 1)] == [2.0, 0.0]
    assert [graph.ops[i].workspace_bytes for i in (0, 1)] == [0, 64]
    assert graph.size_of(tensor) == 4096
    assert captured.graph.ops[0].time_s == 0
    rest = [name for name in captured.graph.arrays.tensor_names if name != tensor]
    assert [graph.size_of(name) for name in rest] == [captured.graph.size_of(n) for n in rest]


def test_state_beside_the_step_is_static(captured):
    """The peak of every schedule grows by it."""
    more = captured.with_state(1000)
    schedule = Schedule.store_all(captured.graph)
    grown = simulate(more.graph, schedule).peak_bytes
    assert grown == simulate(captured.graph, schedule).peak_bytes + 1000


def test_a_schedule_becomes_a_module(captured):
    """The module has the same loss; a schedule that is not legal is refused."""
    module = captured.module(Schedule.store_all(captured.graph))
    x = torch.randn(3, 4)
    torch.testing.assert_close(module(x), captured.model(x).square().mean())
    with pytest.raises(InvalidScheduleError):
        captured.module(Schedule(captured.graph.op_names, [1, 0]))


def test_what_can_only_be_planned_says_why():
    """A model without memory; and it names itself."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    x = torch.empty(3, 4, device="meta")
    planned = capture(model, (x,), lambda out: out.square().mean())
    assert not planned.runnable
    with pytest.raises(UnsupportedError, match="planned, not run: the model has no memory"):
        planned.module(Schedule.store_all(planned.graph))
    assert f"{planned.graph.num_ops} ops" in repr(planned)

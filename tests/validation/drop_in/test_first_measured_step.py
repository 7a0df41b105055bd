"""The second step tells what the code between graphs takes, and is told of where that is too much.

Python does in it what no graph holds, so that no schedule takes less.
"""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.backend import session_of  # noqa: E402
from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from schedsim.validation.guards.plan_variants import PlainStepWarning  # noqa: E402
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from tiers import slow_where  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim.errors import InfeasibleBudgetError  # noqa: E402
from schedsim.units import format_bytes  # noqa: E402

ROWS, WIDTH = 64, 16


@torch._dynamo.disable
def unseen(x, times=24):
    """Keeps a result of each turn for the backward."""
    for _ in range(times):
        x = x.sigmoid()
    return x


class Around(nn.Module):
    """A graph before and one behind such code."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.second(unseen(self.first(x).tanh())).tanh()


def steps_of(way, budget, zeroes_late=False):
    """A step of the loop and its session: gradients of a sum come in strides of their own.

    Those of the step before may be there until the backward, as may what the loss is made of.
    """
    held = []
    torch.manual_seed(0)
    model, x = Around(), torch.randn(ROWS, WIDTH)
    options = {"budget": budget, "effort": 0.1}
    call = model
    if way == "backend":
        call = torch.compile(model, backend="schedsim", options=options)
    else:
        schedsim.rematerialize(model, x, in_place=True, **options)
    session = (lambda: session_of(options)) if way == "backend" else (lambda: session_in(model))

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        found = call(x)
        if zeroes_late:
            held[:] = [found.exp()]
            optimizer.zero_grad()
        found.sum().backward()
        optimizer.step()
        if not zeroes_late:
            optimizer.zero_grad()

    return step, session, storage_bytes([*model.parameters(), x])


def said_in(caught):
    lines = [str(it.message) for it in caught if it.category is PlainStepWarning]
    return [line for line in lines if "first steps have taken" in line]


@pytest.mark.parametrize("way", slow_where(["backend", "in place"], lambda way: way == "backend"))
def test_what_code_between_graphs_takes_is_known_at_the_third_step(way):
    """The backward was traced again in the first: the record waited for one more step."""
    step, session, _ = steps_of(way, "60kB")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        step()
        step()
        with pytest.raises(InfeasibleBudgetError):
            step()
    [record] = session().plans.known.records
    assert record.after_forward[0].left > 20 * ROWS * WIDTH * 4
    assert len(said_in(caught)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("zeroes_late", [False, True])
def test_the_line_has_what_the_steps_have_taken(zeroes_late):
    """And no line comes where they fit, although a sum of the most of each stretch does not."""
    step, _, resident = steps_of("backend", "1MB", zeroes_late)
    for _ in range(3):  # ops that are measured end the meter's record
        step()
    if zeroes_late:  # which the meter does not see
        resident += 2 * (WIDTH * WIDTH + WIDTH) * 4
    [reading] = AllocatorMeter().read(step)
    peak = resident + reading.peak_bytes
    for budget, said in ((peak + 4096, False), (peak - 4096, True)):
        torch._dynamo.reset()
        step, session, _ = steps_of("backend", budget, zeroes_late)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            step()
            step()
            session()._end_step()
        assert len(said_in(caught)) == said, budget


def test_what_the_step_before_has_made_is_told_of_where_the_forward_beside_it_was_too_much():
    """The record of the second step shows alone that the loop holds something through it."""
    options = {"budget": "1MB", "effort": 0.1, "check": "never"}
    model, x = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()), torch.randn(ROWS, WIDTH)
    call = torch.compile(model, backend="schedsim", options=options)
    fronts, held = [], []
    session = session_of(options)
    tell, budget = session._tell_made, 0

    def noted(_budget):
        # As if this were the budget: with one so near no plan is left, which a refusal says.
        fronts.append(session._front_peak)
        tell(fronts[-1] + budget)

    session._tell_made = noted
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            made = call(x).repeat(20, 1)
            held[:] = [made]
            budget = made.nbytes - 1
            made.square().mean().backward()
            model.zero_grad()
    forward_bytes = ROWS * WIDTH * 4
    [front] = filter(None, fronts)
    assert front >= storage_bytes([*model.parameters(), x]) + forward_bytes
    [line] = said_in(caught)
    assert f"up to {format_bytes(front + made.nbytes)}" in line
    assert f": {format_bytes(made.nbytes)} are what the loop makes" in line


@torch._dynamo.disable
def joined(x):
    """What the first graph reads, which code in front of it makes."""
    return torch.cat([x] * 20)


class InFront(nn.Module):
    """Such code, and a graph."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.layer(joined(x)).tanh().mean()


def test_inputs_that_code_in_front_of_the_first_graph_makes_count_once():
    """A line said of first steps that they had taken these twice."""
    torch.manual_seed(0)
    model, x = InFront(), torch.randn(ROWS, WIDTH)
    schedsim.rematerialize(model, x, "1MB", in_place=True, effort=0.1, check="never")
    session, told = session_in(model), []
    tell = session._tell_unmeasured

    def noted(reading):
        told.append((reading, session._bytes_at_start, session._step.calls.rows[0].shared_bytes))
        tell(reading)

    session._tell_unmeasured = noted
    for _ in range(3):
        model(x).backward()
        model.zero_grad()
    reading, at_start, shared = told[0]
    made = 20 * x.nbytes
    assert reading.made_before == made
    assert shared >= made
    # The inputs, the product and its tanh, and a gradient of that.
    assert at_start + shared - reading.made_before + reading.top_bytes < 4.5 * made

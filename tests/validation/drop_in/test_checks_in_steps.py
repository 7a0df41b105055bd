"""Ops without output in the user's own step: it ends where the plain step ends, and goes on."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")

from checked_steps import CHECKED, NOTED, CheckedNet, note_hidden  # noqa: E402
from schedsim.validation.guards.plan_variants import PlainStepWarning  # noqa: E402
from tiers import slow_where  # noqa: E402

import schedsim  # noqa: E402


def steps(door, checked, num_steps=6, bad=3):
    """What each step gave: its loss, or what it raised; then the parameters and the generator."""
    torch.manual_seed(3)
    model, x = CheckedNet(checked), torch.randn(24, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    step = model
    if door == "in place":
        schedsim.rematerialize(model, (x,), "90%", in_place=True)
    elif door == "backend":
        step = torch.compile(model, backend="schedsim", options={"budget": "90%"})
    elif door in ("whole", "by blocks"):
        level = "op" if door == "whole" else "block"
        step = schedsim.rematerialize(model, (x,), "100%", level=level)
    found = []
    for number in range(num_steps):
        if number in (bad, bad + 1):  # the loop goes on with the next batch
            with torch.no_grad():
                kept = model.scale.clone()
                model.scale.fill_(-4e5)
        try:
            loss = step(x)
            loss.backward()
            found.append(loss.item())
        except (RuntimeError, AssertionError, ArithmeticError) as error:
            found.append((type(error), str(error)))
        if number in (bad, bad + 1):
            with torch.no_grad():
                model.scale.copy_(kept)
        optimizer.step()
        optimizer.zero_grad()
    parameters = [p.detach().clone() for p in model.parameters()]
    return found, [*parameters, torch.get_rng_state()]


DOORS = ["whole", "by blocks", "in place", "backend"]


@pytest.mark.parametrize(
    ("door", "checked"),
    slow_where(
        [(door, checked) for door in DOORS for checked in CHECKED],
        lambda case: case[0] in DOORS[2:],
    ),
    ids=lambda it: it if isinstance(it, str) else it.__name__,
)
def test_the_error_of_the_plain_step(door, checked):
    """The same error in the same step, and the same bits before and behind it."""
    torch._dynamo.reset()
    expected, left = steps("plain", checked)
    assert [type(it) for it in expected] == [float, float, float, tuple, tuple, float]
    with warnings.catch_warnings():
        warnings.simplefilter("error", PlainStepWarning)
        found, now = steps(door, checked)
    assert found == expected
    assert all(map(torch.equal, now, left))


@pytest.mark.slow
def test_what_a_custom_op_notes_is_noted_once_a_step():
    """Neither the comparison of schedules nor a repeat notes anything."""
    torch._dynamo.reset()
    NOTED.clear()
    torch.manual_seed(0)
    model, x = CheckedNet(note_hidden), torch.randn(24, 6)
    step = torch.compile(model, backend="schedsim", options={"budget": "90%"})
    for _ in range(5):
        step(x).backward()
    assert len(NOTED) == 5

"""A step is planned anew where its sizes outgrow the plan."""

from __future__ import annotations

import copy
import gc
import warnings
import weakref
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from lengths import Net, batch, peak, planned, same, step  # noqa: E402
from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from schedsim.validation.drop_in.plans import single_steps, step_plans  # noqa: E402
from schedsim.validation.drop_in.records.step_record import NOTHING, StepRecord  # noqa: E402
from schedsim.validation.guards.plan_variants import ReplannedWarning  # noqa: E402

import schedsim  # noqa: E402
from schedsim.errors import InfeasibleBudgetError  # noqa: E402
from schedsim.plans.least_budget import LeastBudget  # noqa: E402


@pytest.mark.slow
def test_longer_than_planned(monkeypatch):
    """What fits is run by what is known; what does not is planned anew, once, and said."""
    monkeypatch.setattr(single_steps, "_plan_larger", lambda *_: None)
    model = Net()
    most, _ = peak(copy.deepcopy(model), batch(160))
    budget = int(0.6 * most)
    plain = planned(model, batch(32), budget, dynamic=True)
    for length in (40, 160):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            step(model, batch(length))
        replans = [one for one in said if one.category is ReplannedWarning]
        assert len(replans) == (length == 160)
        same(model, plain, batch(length), budget)
    assert "(8, 160)" in schedsim.drop_in_report(model)


@pytest.mark.slow
def test_a_second_length_opens_the_size():
    """As torch.compile does: the first length is traced as it is, the second with an open size."""
    model = Net(depth=2)
    plain = planned(model, batch(32), 10**9)
    session = session_in(model)
    for length in (48, 33, 47):
        assert all(map(torch.equal, step(model, batch(length)), step(plain, batch(length))))
    assert [bool(part.sizes.names) for part in session.parts][-1]
    num_parts = len(session.parts)
    step(model, batch(46))
    assert len(session.parts) == num_parts


@pytest.mark.slow
def test_a_refusal_is_of_the_kind_of_step_that_takes_most(monkeypatch):
    """The budget that it names is not refused again by a kind that is planned later."""
    model = Net(depth=2)
    planned(model, batch(32), 10**9)
    plans, least = session_in(model).plans, iter([30, 50, 40])

    def refuse(known, *_):
        plan = replace(known.plan, least=LeastBudget(next(least)))
        raise InfeasibleBudgetError("too little", plan=plan)

    monkeypatch.setattr(step_plans, "plan_single", refuse)
    record = StepRecord(((0, 0),), ((),), (0,), (NOTHING,), (NOTHING,))
    plans.known.records = [replace(record, keys=((0, i),)) for i in range(3)]
    with pytest.raises(InfeasibleBudgetError) as refused:
        plans._replanned(True)
    assert refused.value.min_feasible_bytes == 50
    # Where the step goes on all the same, the frames of its forward, and their tensors, go.
    least = iter([30, 50, 40])
    gc.disable()
    try:
        plans._replanned(True)
    except InfeasibleBudgetError as error:
        caught = weakref.ref(error)
    finally:
        gc.enable()
    assert caught() is None

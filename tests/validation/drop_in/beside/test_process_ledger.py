"""What other models with a budget hold is resident beside the steps of each."""

from __future__ import annotations

import gc
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.beside.held_state import HeldState  # noqa: E402
from schedsim.validation.drop_in.beside.process_ledger import Member  # noqa: E402
from schedsim.validation.drop_in.drop_in_options import DropInOptions  # noqa: E402
from schedsim.validation.drop_in.records.present_step import PresentStep  # noqa: E402
from torch import nn  # noqa: E402


def member(model, **options):
    """The row of `model`."""
    held = HeldState(DropInOptions(10**9, **options))
    held.see([*model.parameters(), *model.buffers()])
    return Member(PresentStep(), held)


def trained(model, optimizer):
    model(torch.randn(2, 8)).sum().backward()
    optimizer.step()


@pytest.fixture
def two():
    """Two models with a budget, and no other one."""
    gc.collect()
    models = nn.Linear(8, 8, bias=False), nn.Linear(8, 4, bias=False)
    return models, [member(it) for it in models]


def test_parameters_gradients_and_states_of_the_other_are_resident(two):
    (one, other), (mine, its) = two
    assert mine.held.total_bytes == its.held.total_bytes == 256 + 128
    trained(other, torch.optim.SGD(other.parameters(), lr=0.1))
    assert mine.held.lasting_bytes == 256 + 128
    assert mine.held.total_bytes == 256 + 128 + 128
    optimizer = torch.optim.Adam(other.parameters())
    trained(other, optimizer)
    assert mine.held.lasting_bytes == its.held.lasting_bytes == 256 + 128 + 2 * 128 + 4
    assert mine.held.made_bytes == 0  # as it is the other's
    assert one.weight.data_ptr() not in mine.places_beside()
    states = {it.data_ptr() for it in optimizer.state[other.weight].values()}
    own = {other.weight.data_ptr(), other.weight.grad.data_ptr()}
    assert own | states == mine.places_beside()


def test_states_that_are_to_come_count_for_all(two):
    (one, other), (mine, its) = two
    assert mine.adam_bytes() == its.adam_bytes() == 2 * 384 + 2 * 4
    optimizer = torch.optim.Adam(one.parameters())
    trained(one, optimizer)
    assert mine.adam_bytes() == its.adam_bytes() == 2 * 128 + 4
    del other


def test_what_two_share_counts_once(two):
    """As one model that has two budgets, and an optimizer of both models."""
    (one, other), (mine, its) = two
    again = member(one)
    assert again.held.total_bytes == mine.held.total_bytes == 256 + 128
    optimizer = torch.optim.Adam([*one.parameters(), *other.parameters()])
    for model in (one, other):
        model(torch.randn(2, 8)).sum().backward()
    optimizer.step()
    every = 3 * 384 + 2 * 4
    assert mine.held.lasting_bytes == its.held.lasting_bytes == again.held.lasting_bytes == every
    assert mine.held.total_bytes == again.held.total_bytes == every + 384


def test_a_model_that_is_gone_counts_nowhere(two):
    (_, _), (mine, its) = two
    third = nn.Linear(8, 8)
    row = member(third)
    assert {its, row} == set(mine.others())
    del third
    assert row not in mine.others()
    assert mine.held.total_bytes == 384


def test_a_model_in_a_cycle_is_looked_for_once(two):
    (_, _), (mine, _its) = two
    third = nn.Linear(8, 8)
    row = member(third)
    third.it = third
    del third
    assert row not in mine.others()


def test_the_open_steps_of_others_tell_the_kind_of_a_step(two):
    class Open:
        is_open, kept_bytes, outputs = True, 40, (7,)

    _, (mine, its) = two
    assert mine.open_beside == frozenset()
    its.step.calls.rows.append(Open())
    assert mine.open_beside == {its.number}
    assert its.open_beside == frozenset()
    assert mine.kept_by_others({}) == 40
    assert mine.kept_by_others({7: 30, 8: 5}) == 10  # what is read counts there


def test_a_larger_budget_of_another_model_is_seen(two):
    _, (mine, its) = two
    mine.budget_bytes, its.budget_bytes = lambda: 100, lambda: 200
    assert (mine.larger_budget(), its.larger_budget()) == (200, 0)
    its.budget_bytes = lambda: None  # a share, of its own step
    assert mine.larger_budget() == 0


def test_what_no_plan_counts_is_named_by_the_refusals_of_all(two):
    """As of a gradient penalty's graph, which waits beside the critic's steps alone."""
    _, (mine, its) = two
    assert mine.most_uncounted_bytes() == 0
    its.uncounted_bytes = 700
    assert mine.most_uncounted_bytes() == its.most_uncounted_bytes() == 700


@pytest.mark.slow
@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_two_models_that_are_trained_at_once_by_two_threads_are_told_of(num_threads, is_shared):
    """By one thread in turn nothing is said. Models may share a session, with the same options."""
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2)]
    options = [
        {"budget": "1MiB", "effort": 0.1, "extra_bytes": 0 if is_shared else i} for i in (0, 1)
    ]
    pairs = zip(models, options, strict=True)
    calls = [torch.compile(it, backend="schedsim", options=own) for it, own in pairs]
    x = torch.randn(4, 8)
    pools = [ThreadPoolExecutor(1) for _ in range(num_threads)]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        losses = [
            pools[i % num_threads].submit(lambda call=call: call(x).sum()).result()
            for i, call in enumerate(calls)
        ]
        for i, loss in enumerate(losses):
            pools[i % num_threads].submit(loss.backward).result()
    for pool in pools:
        pool.shutdown()
    told = [it for it in said if "by another thread" in str(it.message)]
    assert len(told) == (num_threads == 2)

"""Whole models on each rank, gradients averaged by DistributedDataParallel."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from rank_processes import run_ranks  # noqa: E402
from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from schedsim.validation.guards.plan_variants import ReplannedWarning  # noqa: E402
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from schedsim.validation.ranks.one_plan import plan_hash  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (  # noqa: E402
    allreduce_hook,
)

import schedsim  # noqa: E402

LOSS = nn.functional.mse_loss


def a_model(width=64):
    """A line of blocks."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(4)))


def _measured(model, data, step, resident_bytes):
    """The peak of a step after two others: the buckets are made anew after the first."""
    for _ in range(2):
        step()
    [reading] = AllocatorMeter().read(step)
    return storage_bytes([list(model.parameters()), *data]) + resident_bytes + reading.peak_bytes


def _steps(rank, level, view):
    model, data = a_model(), (torch.randn(256, 64), torch.randn(256, 64))
    options = {"level": level, "effort": 0.2, "keep_gradients": not view}
    module = schedsim.rematerialize(model, data, "110%", LOSS, **options)
    parallel = nn.parallel.DistributedDataParallel(module, gradient_as_bucket_view=view)
    hashes = [plan_hash(module.plan)]
    before = module.plan.static_bytes

    def step():
        parallel.zero_grad(set_to_none=view)
        parallel(*data).backward()

    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    # The buckets, and the gradients where they are others and stay.
    measured = _measured(model, data, step, weights if view else 2 * weights)
    hashes.append(plan_hash(module.plan))
    plan = module.plan
    rows = [(plan.static_bytes - before, weights, measured, plan.peak_bytes)]
    if view:
        # What a step accumulates lies beside the buckets, and a line says so.
        parallel.zero_grad()
        with parallel.no_sync(), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            parallel(*data).backward()
        # By blocks, gradients are in the buckets from the start, and count already.
        lines = [str(one.message) for one in said if one.category is ReplannedWarning]
        assert ["gradients stay" in line for line in lines] == [True] * (level == "op")
        step = parallel.no_sync()(lambda: parallel(*data).backward())
        measured = _measured(model, data, step, 2 * weights)
        rows.append((module.plan.static_bytes - before, weights, measured, module.plan.peak_bytes))
    return hashes, rows


@pytest.mark.parametrize(("level", "view"), [("block", False), ("block", True), ("op", True)])
def test_buckets_are_counted_when_the_first_step_shows_them(level, view):
    """One copy of the gradients, besides those that stay; one plan on all ranks.

    Four layers of 64 x 64 + 64 numbers of 4 bytes are 66560.
    """
    ranks = run_ranks(_steps, 2, level, view)
    assert ranks[0][0] == ranks[1][0]
    for _, rows in ranks:
        for number, (added, weights, measured, planned) in enumerate(rows):
            assert weights == 66560
            assert added == (1 + number) * weights
            assert 0.99 * planned <= measured <= 1.01 * planned


def _in_place(rank):
    model, data = a_model(), (torch.randn(256, 64), torch.randn(256, 64))
    parallel = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    refused = [_refused(parallel, data), _refused(nn.Sequential(parallel), data)]
    found = schedsim.rematerialize(parallel, data[0], "95%", in_place=True, effort=0.2)
    assert found is parallel

    def step():
        parallel.zero_grad(set_to_none=False)
        LOSS(parallel(data[0]), data[1]).backward()

    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    step()
    # The budget does not see the targets.
    measured = _measured(model, data[:1], step, weights)
    planned = session_in(parallel).peak_bytes
    assert schedsim.restore(parallel) is parallel
    return refused, measured, planned


def _refused(model, data):
    try:
        schedsim.rematerialize(model, data, "80%", LOSS)
    except schedsim.UnsupportedError as error:
        return str(error), error.hint
    return None


def test_a_wrapped_model_in_place_counts_its_buckets():
    """Gradients that are views of them count once; without in_place a wrapper is refused."""
    for refused, measured, planned in run_ranks(_in_place, 2):
        for message, hint in refused:
            assert "averages gradients around the step" in message
            assert "in_place=True" in hint
        assert 0.99 * planned <= measured <= 1.01 * planned


BUCKET_MB = 16640 / 2**20


def _averages_by_ops(rank, bucket_mb, view):
    """Which gradients are averaged with how many ops to come, and how far gradients are off."""
    model, data = a_model(), (torch.randn(256, 64), torch.randn(256, 64))
    plain = nn.parallel.DistributedDataParallel(a_model(), bucket_cap_mb=bucket_mb)
    module = schedsim.rematerialize(model, data, "110%", LOSS, level="op", effort=0.2)
    parallel = nn.parallel.DistributedDataParallel(
        module, bucket_cap_mb=bucket_mb, gradient_as_bucket_view=view
    )
    seen = []

    def average(state, bucket):
        seen.append((bucket.buffer().nbytes, sum(module.run_counts.values())))
        return allreduce_hook(None, bucket)

    parallel.register_comm_hook(None, average)
    own = (data[0] + rank, data[1])
    for _ in range(3):
        seen.clear()
        parallel.zero_grad()
        parallel(*own).backward()
        plain.zero_grad()
        LOSS(plain(own[0]), own[1]).backward()
    equal = [
        torch.equal(mine.grad, its.grad)
        for mine, its in zip(model.parameters(), plain.module.parameters(), strict=True)
    ]
    return seen, sum(module.run_counts.values()), all(equal)


@pytest.mark.parametrize("view", [False, True])
def test_gradients_are_averaged_while_ops_before_them_run_backward(view):
    """A layer's 16640 bytes are a bucket of their own; one bucket comes last of all."""
    for seen, ran, equal in run_ranks(_averages_by_ops, 2, 16640 / 2**20, view):
        assert equal
        assert [num_bytes for num_bytes, _ in seen] == [16640] * 4
        at = [runs for _, runs in seen]
        assert at == sorted(set(at))
        assert at[0] < ran / 2 + 4
        assert at[-1] == ran
    for seen, ran, equal in run_ranks(_averages_by_ops, 2, 25, view):
        assert equal
        assert [runs for _, runs in seen] == [ran]


def _averages_in_place(rank, budget, view, unused):
    """Which gradients are averaged with how many ops to come, and how far gradients are off."""
    model, data = a_model(), (torch.randn(256, 64), torch.randn(256, 64))
    plain = nn.parallel.DistributedDataParallel(a_model(), bucket_cap_mb=BUCKET_MB)
    schedsim.rematerialize(model, data[0], budget, in_place=True, effort=0.2)
    parallel = nn.parallel.DistributedDataParallel(
        model, bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=view, find_unused_parameters=unused
    )
    seen = []
    session = session_in(model)

    def num_runs():
        return sum(session.parts[-1].run_counts.values())

    def average(state, bucket):
        seen.append((bucket.buffer().nbytes, num_runs()))
        return allreduce_hook(None, bucket)

    parallel.register_comm_hook(None, average)
    own, is_equal = (data[0] + rank, data[1]), True
    for number in range(9):
        seen.clear()
        for wrapped in (plain, parallel):
            wrapped.zero_grad()
            x = own[0].clone().requires_grad_(number > 2)
            LOSS(wrapped(x), own[1]).backward()
        pairs = zip(model.parameters(), plain.module.parameters(), strict=True)
        is_equal &= all(torch.equal(mine.grad, its.grad) for mine, its in pairs)
    return seen, num_runs(), is_equal


@pytest.mark.slow
@pytest.mark.parametrize(
    ("budget", "view", "unused"),
    [
        pytest.param(10**9, False, False, marks=pytest.mark.slow),
        (10**9, True, True),
        ("92%", True, False),
    ],
)
def test_in_place_too_gradients_are_averaged_during_backward(budget, view, unused):
    """The node of the compiled graph gives the first bucket alone."""
    for seen, ran, is_equal in run_ranks(_averages_in_place, 2, budget, view, unused):
        assert is_equal
        at = [runs for _, runs in seen]
        assert at == sorted(set(at))
        assert at[0] < ran / 2 + 4
        assert at[-1] == ran

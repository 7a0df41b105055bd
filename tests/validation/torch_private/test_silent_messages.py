"""Messages that are not sent: what they give, and that torch's own kernels are there afterwards."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from rank_processes import run_ranks  # noqa: E402
from schedsim.validation.torch_private.prompt_messages import (  # noqa: E402
    is_silent,
    prompt_messages,
    silent_messages,
)

OPS = torch.ops._c10d_functional


def _sent(rank):
    group = torch.distributed.group.WORLD.group_name
    x = torch.full((2, 3), 1.0 + rank)

    def all_of_them():
        return [
            OPS.all_reduce(x, "sum", group),
            OPS.all_gather_into_tensor(x, 2, group),
            OPS.reduce_scatter_tensor(x, "sum", 2, group),
            OPS.broadcast(x, 0, group),
            OPS.all_to_all_single(x, [1, 1], [1, 1], group),
        ]

    def waited():
        return [OPS.wait_tensor(one) for one in all_of_them()]

    before = waited()
    silent = []
    if rank:  # the other rank sends nothing at all
        with silent_messages():
            silent = waited()
            with prompt_messages(), silent_messages():
                again = waited()
        assert all(torch.equal(a, b) for a, b in zip(silent, again, strict=True))
    with prompt_messages():
        prompt = waited()
    return before, prompt, silent


def test_silent_messages_have_the_form_of_those_that_are_sent():
    """One rank makes them alone; the messages before and after meet those of the other rank."""
    for before, prompt, silent in run_ranks(_sent, 2, timeout_s=60):
        assert all(torch.equal(a, b) for a, b in zip(before, prompt, strict=True))
        for sent, made in zip(before, silent, strict=False):
            assert made.shape == sent.shape


def test_ops_that_cannot_be_silent_are_known():
    """Others are refused, as one rank cannot measure them."""
    assert is_silent(OPS.all_reduce.default)
    assert is_silent(OPS.wait_tensor.default)
    assert not is_silent(OPS.all_reduce_coalesced.default)
    assert not is_silent(torch.ops.aten.mm.default)

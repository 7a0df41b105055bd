"""FSDP2 by the backend of torch.compile: blocks compiled one by one, or the model as a whole."""

from __future__ import annotations

import warnings
from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from rank_processes import run_ranks  # noqa: E402
from schedsim.validation.drop_in.backend import session_of  # noqa: E402
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from spread_models import made  # noqa: E402
from torch import nn  # noqa: E402

MOST_STEPS, NUM_READ = 40, 3
FORMS = ("blocks", "whole")


def compiled(kind, form, options):
    """(model, what the loop calls, the same plain, inputs, targets, loss)."""
    given = {"backend": "schedsim", "options": options}
    plain = made(kind)[0]
    if form == "blocks":
        model, _, (x, target), loss = made(kind, lambda block: block.compile(**given))
        return model, model, plain, x, target, loss
    model, _, (x, target), loss = made(kind)
    return model, torch.compile(model, **given), plain, x, target, loss


def share(tensor):
    """This rank's part of `tensor`."""
    return getattr(tensor, "_local_tensor", tensor).detach()


def same(one, other, what=lambda parameter: parameter):
    """Whether the shares of all parameters are equal to the bit."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.equal(share(what(a)), share(what(b))) for a, b in pairs)


def on_all(flag):
    """Whether `flag` holds on all ranks."""
    found = torch.tensor([float(not flag)])
    torch.distributed.all_reduce(found)
    return not found.item()


def micro_batches(kind, model, run, x, target, loss):
    """Forward and backward, of two micro-batches where `kind` accumulates."""
    if kind == "accumulated":
        model.set_requires_gradient_sync(False)
        loss(run(x), target).backward()
        model.set_requires_gradient_sync(True)
    loss(run(x), target).backward()


def read(kind, form, budget="88%"):
    """(gradients and AdamW's steps to the bit, most measured bytes, planned, budget, lines)."""
    options = {"budget": budget, "effort": 0.2}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        of = "replicated" if kind == "replicated" else kind
        model, run, plain, x, target, loss = compiled(of, form, options)
        gradients = []
        for it, call in ((plain, plain), (model, run)):
            optimizer = torch.optim.AdamW(it.parameters(), lr=1e-2)
            for _ in range(12):
                micro_batches(kind, it, call, x, target, loss)
                nn.utils.clip_grad_norm_(it.parameters(), 1.0)
                gradients.append([share(p.grad).clone() for p in it.parameters()])
                optimizer.step()
                optimizer.zero_grad()
        half = len(gradients) // 2
        equal = same(plain, model) and all(
            torch.equal(a, b)
            for one, other in zip(gradients[:half], gradients[half:], strict=True)
            for a, b in zip(one, other, strict=True)
        )
        del gradients
        session = session_of(options)
        step = partial(micro_batches, kind, model, run, x, target, loss)
        for _ in range(MOST_STEPS):
            model.zero_grad()
            step()
            if on_all(session.peak_bytes is not None and not session.is_learning):
                break
        measured = []
        while len(measured) < MOST_STEPS:
            model.zero_grad()
            resident = storage_bytes([list(model.parameters()), x, dict(optimizer.state)])
            [reading] = AllocatorMeter().read(step)
            measured.append(resident + reading.peak_bytes)
            if on_all(len(measured) >= NUM_READ and min(measured) <= session.peak_bytes):
                break
    lines = [str(one.message) for one in caught]
    return equal, min(measured), session.peak_bytes, session.budget_bytes, lines

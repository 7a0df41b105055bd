"""Methods that change how modules run: torch.utils.checkpoint in its forms, and one of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

from .subjects import Subject

Step = Callable[[], Tensor]
"""A forward pass: the loss, whose backward is then run."""

aten = torch.ops.aten
HEAVY = (
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten.convolution.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
)


class Refused(Exception):
    """A method does not take this model, or cannot run here; the text says why."""


def plain(subject: Subject) -> Step:
    """The model as it is."""
    return lambda: subject.loss(subject.output())


@contextmanager
def wrapped(blocks: list[nn.Module], wrap: Callable[[int, Any], Any]) -> Iterator[None]:
    """`blocks` with their forwards replaced by what ``wrap(number, forward)`` gives."""
    for number, block in enumerate(blocks):
        block.forward = wrap(number, block.forward)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward


def per_block(subject: Subject, *, reentrant: bool = False, contexts: Any = None) -> Step:
    """Every block under `torch.utils.checkpoint.checkpoint`.

    Parameters
    ----------
    contexts
        For selective checkpointing: block number -> its ``context_fn``, or ``None`` to leave the
        block as it is.
    """

    def wrap(number: int, forward: Any) -> Any:
        if contexts is None:
            return partial(checkpoint, forward, use_reentrant=reentrant)
        context = contexts(number)
        if context is None:
            return forward
        return partial(checkpoint, forward, use_reentrant=False, context_fn=context)

    def step() -> Tensor:
        with wrapped(subject.blocks, wrap):
            return subject.loss(subject.output())

    return step


def sequential(subject: Subject, segments: int) -> Step:
    """`checkpoint_sequential`: all segments but the last are checkpoints."""
    if not subject.parts:
        raise Refused("takes a sequence of modules; this model is none")

    def step() -> Tensor:
        run = partial(checkpoint_sequential, subject.parts, segments, use_reentrant=False)
        return subject.loss(subject.output(run))

    return step


def selective(subject: Subject, every: int) -> Step:
    """Keep the outputs of matrix products, convolutions and attention; or every so-many-th."""

    def contexts(_: int) -> Any:
        seen = {False: 0, True: 0}

        def policy(context: Any, op: Any, *_args: Any, **_keywords: Any) -> CheckpointPolicy:
            if op not in HEAVY:
                return CheckpointPolicy.PREFER_RECOMPUTE
            seen[context.is_recompute] += 1
            keep = seen[context.is_recompute] % every == 0
            return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

        def make() -> Any:
            seen.update({False: 0, True: 0})
            return create_selective_checkpoint_contexts(policy)

        return make

    return per_block(subject, contexts=contexts)


def own_checkpointing(subject: Subject) -> Step:
    """The model's own switch: ``gradient_checkpointing_enable`` of transformers."""
    enable = subject.enable
    if enable is None:
        raise Refused("a method of models of transformers")

    def step() -> Tensor:
        disable = enable()
        try:
            return subject.loss(subject.output())
        finally:
            disable()

    return step

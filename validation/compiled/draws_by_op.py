"""Random numbers of groups that inductor does not compile: they follow from their seeds, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..capture.program import Call, map_refs, refs
from ..torch_private import inductor_calls as inductor
from ..torch_private.fake_tensors import fake_mode
from .fusible import is_draw

Layout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, torch.device]
"""Shape, strides, format and device of a tensor."""


def with_compiled_draws(calls: Sequence[Call], inputs: Sequence[Layout]) -> list[Call]:
    """The `calls` of a group, to be run one by one, with each draw from a seed compiled by itself.

    Uncompiled, such an op draws from the generator, whatever its seed: not the numbers that other
    groups make of that seed, nor, in a run that a schedule repeats, those of the first run.

    Parameters
    ----------
    inputs
        Layouts of the arguments of the group, which have the first numbers.

    Raises
    ------
    Exception
        Whatever inductor raises where it does not compile a draw.
    """
    return [
        replace(call, target=_compiled(call, inputs)) if is_draw(call.target) else call
        for call in calls
    ]


def _compiled(call: Call, inputs: Sequence[Layout]) -> Callable[..., torch.Tensor]:
    shape, stride, dtype, device = inputs[next(refs(call.args))]
    mode = fake_mode()
    with mode:
        seed = torch.empty_strided(shape, stride, dtype=dtype, device=device)

    def draw(seed: torch.Tensor) -> tuple[torch.Tensor]:
        return (call.target(*map_refs(call.args, lambda _: seed)),)

    code = inductor.compile_function(draw, [seed], mode)

    def run(*args: Any) -> torch.Tensor:
        made: torch.Tensor = code([one for one in args if isinstance(one, torch.Tensor)])[0]
        return made

    return run

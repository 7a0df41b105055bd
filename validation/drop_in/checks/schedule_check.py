"""Comparison of a new schedule of a part with another one, on the inputs of the next step.

A difference of one bit in an output or a gradient would silently train something else. Of each run,
only numbers that represent the bits of each tensor are kept, so that the check needs no more memory
than the larger of the two runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from schedsim.errors import SchedsimError

from ...block_level.repeated_forward import RandomState
from ...capture.checks import unnoticed
from ...capture.varying_sizes import settled_value
from ...op_level.random_replay import RandomReplay
from .tensor_bits import bits_of, made_up_gradient

if TYPE_CHECKING:
    from ..parts.part_sizes import Binding
    from ..parts.traced_part import TracedPart


class ScheduleComparison:
    """Schedules of `part` beside each other, on the arguments of one call.

    Parameters
    ----------
    arguments
        Value of the program -> argument of the forward.

    Notes
    -----
    Each schedule takes the time of a step of the part, whatever it is compared with; one more where
    bits differ, because some kernels give other bits every time.
    """

    def __init__(self, part: TracedPart, arguments: Mapping[int, Any], binding: Binding) -> None:
        self._part, self._arguments, self._binding = part, arguments, binding
        self._left: dict[int, dict[str, tuple[Any, ...]]] = {}

    def difference(self, number: int, other: int) -> str | None:
        """The difference between the schedules `number` and `other`; ``None`` if none."""
        expected = self._left_by(other)
        try:
            found = self._left_by(number)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, TypeError, IndexError, KeyError, SchedsimError) as error:
            return f"it fails: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        names = [name for name in expected if found.get(name) != expected[name]]
        if not names:
            return None
        again = _left_by(self._part, other, self._arguments, self._binding)
        names = [name for name in names if again[name] == expected[name]]
        if not names:
            return None
        return f"{names[0]} is another" + (f", and {len(names) - 1} more" if names[1:] else "")

    def _left_by(self, number: int) -> dict[str, tuple[Any, ...]]:
        if number not in self._left:
            self._left[number] = _left_by(self._part, number, self._arguments, self._binding)
        return self._left[number]


def _left_by(
    part: TracedPart, number: int, arguments: Mapping[int, Any], binding: Binding
) -> dict[str, tuple[Any, ...]]:
    """Numbers for the outputs, gradients and generator after both halves, by name."""
    program, halves = part.program, part.code.halves(number)
    constants, sizes = program.constants, part.code.sizes(number, binding)
    counts = [0] * part.graph.num_ops
    named = part.sizes.named(binding)
    tangents = [settled_value(program, v, named) for v in program.tangents]
    devices = {t.device for t in arguments.values() if isinstance(t, torch.Tensor) and t.is_cuda}
    left: dict[str, tuple[Any, ...]] = {}
    with generators_kept(sorted(devices, key=str)), torch.no_grad(), unnoticed():
        resident = [arguments[v] if v in arguments else constants[v] for v in halves.resident]
        random = RandomReplay(len(halves.repeated_random), part.device)
        outputs, carried = halves.forward.function(resident, counts, random, None, sizes)
        left |= {f"output {i}": bits_of(output) for i, output in enumerate(outputs)}
        given = [made_up_gradient(value, seed) for seed, value in enumerate(tangents)]
        left["the generator"] = (torch.get_rng_state().numpy().tobytes(),)
        del outputs
        kept = [v in halves.read_backward or v in constants for v in halves.resident]
        resident = [t if stays else None for t, stays in zip(resident, kept, strict=True)]
        later = RandomReplay(len(halves.repeated_random), part.device)
        for k in halves.carried_states:
            later.states[k] = random.states[k]
        carried = list(carried)
        gradients = halves.backward.function(resident, carried, given, counts, later, None, sizes)
    names = [*program.gradients, *(f"input {v}" for v in program.input_gradients)]
    for name, gradient in zip(names, gradients, strict=True):
        left[f"the gradient of {name}"] = bits_of(gradient)
    return left


@contextmanager
def generators_kept(devices: Sequence[torch.device]) -> Iterator[None]:
    """The generators of the CPU and of `devices` as they were, kept in no memory of a budget."""
    state = RandomState.now(("cpu", *map(str, devices)))
    try:
        yield
    finally:
        state.restore()

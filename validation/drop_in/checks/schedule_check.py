"""Comparison of a new schedule of a part with another one, on the inputs of the next step.

A difference of one bit in an output or a gradient would silently train something else. Of each run,
only numbers that represent the bits of each tensor are kept, so that the check needs no more memory
than the larger of the two runs. Other ranks may have nothing to compare: messages are not sent, and
a rank's own numbers stand for those of others, in both runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from schedsim.errors import SchedsimError

from ...block_level.repeated_forward import RandomState
from ...capture.checks import unnoticed
from ...capture.varying_sizes import settled_value
from ...guards.tensor_bits import bits_of, made_up_gradient
from ...op_level.random_replay import RandomReplay
from ...torch_private.prompt_messages import silent_messages

if TYPE_CHECKING:
    from ..parts.part_sizes import Binding
    from ..parts.traced_part import TracedPart

Lacking = frozenset[int]
"""Numbers of gradients that do not come."""


class ScheduleComparison:
    """Schedules of `part` beside each other, on the arguments of one call.

    Gradients are made up for all outputs. Where that does not fit, none are made for outputs for
    which the loop gives none: the backwards run then by which the loop's own will.

    Parameters
    ----------
    arguments
        Value of the program -> argument of the forward.
    room_bytes
        Gives the bytes that each schedule may take.

    Notes
    -----
    Each schedule takes the time of a step of the part, whatever it is compared with; one more where
    bits differ, because some kernels give other bits every time.
    """

    def __init__(
        self,
        part: TracedPart,
        arguments: Mapping[int, Any],
        binding: Binding,
        room_bytes: Callable[[], float],
    ) -> None:
        self._part, self._arguments, self._binding = part, arguments, binding
        self._room_bytes = room_bytes
        self._left: dict[tuple[int, Lacking], dict[str, tuple[Any, ...]]] = {}

    def difference(self, number: int, other: int) -> str | None:
        """The difference between the schedules `number` and `other`; ``None`` if none."""
        it = self._part
        lacking = self._lacking(number, other)
        most = max(it.compared_bytes(n, self._binding, lacking) for n in (number, other))
        if most > (room := self._room_bytes()):
            it.session.say_over(it, most - int(room))
        expected = self._left_by(other, lacking)
        try:
            found = self._left_by(number, lacking)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, TypeError, IndexError, KeyError, SchedsimError) as error:
            return f"it fails: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        names = [name for name in expected if found.get(name) != expected[name]]
        if not names:
            return None
        again = _left_by(self._part, other, self._arguments, self._binding, lacking)
        names = [name for name in names if again[name] == expected[name]]
        if not names:
            return None
        return f"{names[0]} is another" + (f", and {len(names) - 1} more" if names[1:] else "")

    def _lacking(self, *numbers: int) -> Lacking:
        part, lacking = self._part, self._part.use.lacking
        if not lacking or part.layouts is None:
            return frozenset()
        most = max(part.own_backward_bytes(number, self._binding) for number in numbers)
        if most <= self._room_bytes():
            return frozenset()
        taken = [part.layouts.taken_without(part, number, lacking) for number in numbers]
        return frozenset() if None in taken else lacking

    def _left_by(self, number: int, lacking: Lacking) -> dict[str, tuple[Any, ...]]:
        at = (number, lacking)
        if at not in self._left:
            self._left[at] = _left_by(self._part, number, self._arguments, self._binding, lacking)
        return self._left[at]


def _left_by(
    part: TracedPart,
    number: int,
    arguments: Mapping[int, Any],
    binding: Binding,
    lacking: Lacking,
) -> dict[str, tuple[Any, ...]]:
    """Numbers for the outputs, gradients and generator after both halves, by name."""
    program, mine = part.program, part.code.halves(number)
    constants, sizes = program.constants, part.code.sizes(number, binding)
    counts = [0] * part.graph.num_ops
    named = part.sizes.named(binding)
    devices = {t.device for t in arguments.values() if isinstance(t, torch.Tensor) and t.is_cuda}
    left: dict[str, tuple[Any, ...]] = {}
    kept_generators = generators_kept(sorted(devices, key=str))
    with kept_generators, torch.no_grad(), unnoticed(), silent_messages():
        resident = [arguments[v] if v in arguments else constants[v] for v in mine.resident]
        random = RandomReplay(len(mine.repeated_random), part.device)
        outputs, carried = mine.forward.function(resident, counts, random, None, sizes)
        left |= {f"output {i}": bits_of(output) for i, output in enumerate(outputs)}
        left["the generator"] = (torch.get_rng_state().numpy().tobytes(),)
        del outputs
        given = [
            None if i in lacking else made_up_gradient(settled_value(program, v, named), i)
            for i, v in enumerate(program.tangents)
        ]
        its, at = part, number
        if lacking:
            assert part.layouts is not None
            its, at = part.layouts.taken_without(part, number, lacking) or (part, number)
            part.layouts.stand_in(part, given)
        halves, counts, sizes = (
            its.code.halves(at),
            [0] * its.graph.num_ops,
            its.code.sizes(at, binding),
        )
        read = mine.read_backward
        kept = {v: t for v, t in zip(mine.resident, resident, strict=True) if v in read}
        made = dict(zip(mine.carried, carried, strict=True))
        states = {mine.repeated_random[k]: random.states[k] for k in mine.carried_states}
        del resident, carried, random
        later = RandomReplay(len(halves.repeated_random), part.device)
        for k in halves.carried_states:
            later.states[k] = states[halves.repeated_random[k]]
        resident = [constants[v] if v in constants else kept.get(v) for v in halves.resident]
        carried = [made[v] for v in halves.carried]
        del kept, made, states
        gradients = halves.backward.function(resident, carried, given, counts, later, None, sizes)
    names = [*its.program.gradients, *(f"input {v}" for v in its.program.input_gradients)]
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

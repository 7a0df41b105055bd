"""The code of the schedules of a part: both halves, and which argument a gradient is for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import torch

from ...capture.program import Program, Ref
from ...capture.varying_sizes import VaryingSize, numbers_of
from ...compiled.baked_views import bake_views
from ...compiled.direct_calls import call_directly
from ...op_level.emit import Halves, emit
from ...op_level.short_calls import call_shortly
from .early_gradients import Bucket, Places
from .joint_part import JointPart
from .part_sizes import Binding


class EmittedCode(NamedTuple):
    """The code of one schedule.

    Attributes
    ----------
    halves
        The functions of both halves.
    numbers
        Gives a binding's numbers for the open sizes in them.
    kept
        Places, among the resident values, of those that the forward hands to the backward.
    constants
        Places of constants among them, with these.
    """

    halves: Halves
    numbers: Any
    kept: tuple[int, ...]
    constants: tuple[tuple[int, torch.Tensor], ...]

    def resident_again(self, kept: Sequence[Any]) -> list[Any]:
        """The resident values for the backward, of those that were `kept`."""
        found: list[Any] = [None] * len(self.halves.resident)
        for at, tensor in zip(self.kept, kept, strict=True):
            found[at] = tensor
        for at, tensor in self.constants:
            found[at] = tensor
        return found


class PartCode:
    """Emits, and keeps, the code of a part's schedules by their numbers.

    Parameters
    ----------
    joint
        Both halves as AOTAutograd has traced them.
    program
        The program that runs.
    size_names
        Names of the open sizes.
    compiled
        Whether ops of the program are compiled groups.
    """

    def __init__(
        self, joint: JointPart, program: Program, size_names: Sequence[str], *, compiled: bool
    ) -> None:
        self._joint, self._program, self._size_names = joint, program, size_names
        # The same values and ops, called on the shortest way.
        self._short = call_directly(bake_views(program)) if compiled else call_shortly(program)
        self._rows: list[EmittedCode] = []
        self._runs: list[list[int]] = []
        self._pieces: dict[tuple[int, int], tuple[Halves, Places]] = {}
        self._numbers = numbers_of(
            [it for it in joint.returned if isinstance(it, VaryingSize)], size_names
        )

    @property
    def num(self) -> int:
        """How many schedules have code."""
        return len(self._rows)

    def emitted(self, runs: Sequence[int]) -> EmittedCode:
        """The code of these runs, for `add`; may be made in another thread. O(runs)."""
        halves, constants = emit(self._short, list(runs)), self._program.constants
        resident = list(enumerate(halves.resident))
        return EmittedCode(
            halves,
            numbers_of(halves.sizes, self._size_names),
            tuple(at for at, v in resident if v in halves.read_backward and v not in constants),
            tuple((at, constants[v]) for at, v in resident if v in constants),
        )

    def add(self, runs: Sequence[int], code: EmittedCode | None = None) -> None:
        """Add the code of the next number."""
        self._rows.append(code or self.emitted(runs))
        self._runs.append(list(runs))

    def row(self, number: int) -> EmittedCode:
        """The code of schedule `number`."""
        return self._rows[number]

    def halves(self, number: int) -> Halves:
        """The functions of schedule `number`."""
        return self._rows[number].halves

    def sizes(self, number: int, binding: Binding) -> Any:
        """The numbers that these functions get for their open sizes."""
        return self._rows[number].numbers(binding)

    def returned(self, outputs: Sequence[Any], binding: Binding) -> list[Any]:
        """What autograd gets of a forward that has made these `outputs` of the program."""
        numbers = iter(self._numbers(binding))
        return [
            outputs[place] if place >= 0 else next(numbers) if isinstance(it, VaryingSize) else it
            for place, it in zip(self._returned, self._joint.returned, strict=True)
        ]

    def held(self, outputs: Sequence[Any]) -> list[Any]:
        """Those of these `outputs` that the caller gets, and nobody else holds."""
        return [outputs[place] for place in self._held]

    # By places, as each step asks for them: a model may have hundreds of parameters.

    @cached_property
    def _returned(self) -> list[int]:
        """The place among the outputs of each that autograd gets; -1 for numbers and ``None``."""
        places = {v: place for place, v in enumerate(self._program.outputs)}
        return [places[it.value] if isinstance(it, Ref) else -1 for it in self._joint.returned]

    @cached_property
    def _held(self) -> list[int]:
        places = {v: place for place, v in enumerate(self._program.outputs)}
        return [places[v] for v in self._program.held]

    @cached_property
    def _of_argument(self) -> list[int]:
        """The place of the gradient of each argument among those of the program; -1 for none."""
        program = self._program
        values = [*program.gradients.values(), *program.input_gradients.values()]
        places = {v: place for place, v in enumerate(values)}
        return [places.get(v, -1) if v >= 0 else -1 for v in self._joint.gradients]

    # -- gradients --------------------------------------------------------------------------------

    def by_argument(self, found: list[Any]) -> list[Any]:
        """Gradients, in the order of the program, in that of the arguments."""
        return [found[place] if place >= 0 else None for place in self._of_argument]

    def of_inputs(self, gradients: list[Any]) -> list[torch.Tensor]:
        """Those of inputs among the `gradients` of all arguments."""
        inputs = set(self._program.input_gradients.values())
        rows = zip(self._joint.gradients, gradients, strict=True)
        return [gradient for v, gradient in rows if v in inputs and gradient is not None]

    def in_pieces(self, number: int, piece_bytes: int) -> tuple[Halves, Places]:
        """The code of schedule `number` with a backward in pieces, and whom each piece is for.

        Parameters
        ----------
        piece_bytes
            Bytes of gradients after which a piece ends.
        """
        key = (number, piece_bytes)
        if key not in self._pieces:
            halves = emit(self._short, self._runs[number], piece_bytes=piece_bytes)
            self._pieces[key] = halves, self._places(halves)
        return self._pieces[key]

    def buckets(self, number: int, piece_bytes: int) -> list[Bucket]:
        """The arguments whose gradients come with each piece."""
        _, places = self.in_pieces(number, piece_bytes)
        return [tuple(chain.from_iterable(its)) for its in places]

    def _places(self, halves: Halves) -> Places:
        at: dict[int, list[int]] = {}
        for position, v in enumerate(self._joint.gradients):
            at.setdefault(v, []).append(position)
        names = list(self._program.gradients.values())
        found = [[names[i] for i in delivery.gradients] for delivery in halves.deliveries]
        found[-1] += self._program.input_gradients.values()
        return [[at.get(v, []) for v in values] for values in found]

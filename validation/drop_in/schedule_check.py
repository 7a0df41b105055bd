"""Comparison of a new schedule of a part with another one, on the inputs of the next step.

A difference of one bit in an output or a gradient would silently train something else. Of each run,
only numbers that represent the bits of each tensor are kept, so that the check needs no more memory
than the larger of the two runs.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import torch

from schedsim.errors import SchedsimError

from ..block_level.repeated_forward import RandomState
from ..capture.varying_sizes import settled_value
from ..op_level.random_replay import RandomReplay

if TYPE_CHECKING:
    from .part_sizes import Binding
    from .traced_part import TracedPart

_SMALLEST, _LARGEST, _PARTS = 512, 1 << 20, 64
_WEIGHT = 0x1E3779B97F4A7C15
_MIX = ((30, 0x3F58476D1CE4E5B9), (27, 0x14D049BB133111EB), (31, 1))
"""Shifts and odd factors, chosen like those of splitmix64 (Steele, Lea, Flood 2014)."""
_NUM_SIZES = 2
"""Sizes at which a schedule is compared, where so many come."""
_MOST_AVOIDED = 8
"""Steps of new sizes that run by a slower schedule, so as not to wait for a comparison."""
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


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
    program, halves = part.program, part.halves_of(number)
    constants, sizes = program.constants, part.sizes_of(number, binding)
    counts = [0] * part.graph.num_ops
    named = part.sizes.named(binding)
    tangents = [settled_value(program, v, named) for v in program.tangents]
    devices = {t.device for t in arguments.values() if isinstance(t, torch.Tensor) and t.is_cuda}
    left: dict[str, tuple[Any, ...]] = {}
    with generators_kept(sorted(devices, key=str)), torch.no_grad():
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


class _Formed(Protocol):
    @property
    def shape(self) -> tuple[Any, ...]: ...
    @property
    def stride(self) -> tuple[Any, ...]: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> Any: ...


def made_up_gradient(form: _Formed, seed: int) -> torch.Tensor:
    """A gradient in which every entry of memory differs; nothing but it is allocated."""
    device = form.device
    found = torch.empty_strided(form.shape, form.stride, dtype=form.dtype, device=device)
    num = found.untyped_storage().nbytes() // found.element_size()
    # Entries share memory where the loss is a sum.
    found.as_strided((num,), (1,)).normal_(generator=torch.Generator(device).manual_seed(seed))
    return found


def bits_of(tensor: Any) -> tuple[Any, ...]:
    """Numbers that represent every bit of `tensor` and its place. O(entries)."""
    if not isinstance(tensor, torch.Tensor):
        return (tensor,)
    form = (tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)
    flat = tensor.resolve_conj().resolve_neg()
    flat = torch.view_as_real(flat) if flat.is_complex() else flat
    strides = flat.stride()
    flat = flat.permute(sorted(range(flat.ndim), key=lambda dim: -strides[dim]))
    total = 0
    on_cpu = hashlib.sha256()  # needs no memory, and a fourth of the time
    for piece in _pieces(flat):
        if piece.device.type == "cpu":
            integers = piece.contiguous().view(_INTEGERS[piece.element_size()])
            on_cpu.update(integers.numpy().data)
            continue
        mixed = torch.arange(1, piece.numel() + 1, device=piece.device).mul_(_WEIGHT)
        mixed.add_(piece.view(_INTEGERS[piece.element_size()]))
        # Each step maps numbers one to one, so that no change of a single entry is lost. A sum of
        # weighted entries would lose the top bits of two entries.
        for shift, factor in _MIX:
            mixed.bitwise_xor_((mixed >> shift).bitwise_and_((1 << (64 - shift)) - 1))
            mixed.mul_(factor)
        total = (total * 1000003 + int(mixed.sum())) % (1 << 64)
    return (*form, total or int.from_bytes(on_cpu.digest()[:8]))


def _pieces(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Views of `tensor`, or copies of small parts of it, in order."""
    if not tensor.is_contiguous():
        if tensor.ndim == 0 or tensor.numel() <= _SMALLEST:
            return [tensor.reshape(-1)]
        return [piece for one in tensor.unbind() for piece in _pieces(one)]
    flat = tensor.reshape(-1)
    size = min(_LARGEST, max(_SMALLEST, flat.numel() // _PARTS))
    return [flat[at : at + size] for at in range(0, flat.numel(), size)]


Compare = Callable[[int, int], str | None]
"""Gives the difference between two schedules, by their numbers."""


class ScheduleTrust:
    """Which schedules of a part may run, and which of them were seen to equal another.

    A schedule is compared before it runs for the first time. It is compared at a second size, too,
    because formulas for sizes may be right at one size only; but never in a step whose sizes come
    for the first time, which is not to wait. Schedules that are made for sizes to come are
    compared ahead, in steps of other sizes: the code is the same, and the numbers that it gets for
    sizes are those that every schedule gets.

    Attributes
    ----------
    num_compared
        Number of comparisons of two schedules.
    refused
        Refused schedule -> the schedule that runs instead.
    compared_at
        Sizes at which schedules were compared, with each other or with the plain step.
    """

    def __init__(self) -> None:
        self.num_compared = 0
        self.refused: dict[int, int] = {}
        self.compared_at: list[Binding] = []
        self._seen: dict[int, set[Binding]] = {}
        self._agreed: dict[int, set[Binding]] = {}  # sizes at which it equalled another new one
        self._ran: dict[int, set[Binding]] = {}  # sizes at which it ran, and was not compared
        self._met: set[Binding] = set()
        self._now: list[int] = []
        self._later: list[int] = []
        self._num_avoided: Counter[int] = Counter()

    # -- sizes ------------------------------------------------------------------------------------

    def meet(self, binding: Binding) -> None:
        """A step of these sizes has come."""
        self._met.add(binding)

    def has_met(self, binding: Binding) -> bool:
        """Whether sizes have come before."""
        return binding in self._met

    # -- what was compared ------------------------------------------------------------------------

    def trust(self, number: int, binding: Binding) -> None:
        """Trust `number` at these sizes, because its step was compared in another way."""
        self._seen.setdefault(number, set()).add(binding)
        self._note(binding)

    def _note(self, binding: Binding) -> None:
        if binding not in self.compared_at:
            self.compared_at.append(binding)

    def _sizes(self, number: int) -> set[Binding]:
        return self._seen.get(number, set()) | self._agreed.get(number, set())

    def is_compared(self, number: int) -> bool:
        """Whether `number` was compared at some sizes."""
        return bool(self._sizes(number))

    def is_new(self, number: int, binding: Binding) -> bool:
        """Whether `number` must be compared before it runs at these sizes."""
        seen = self._sizes(number)
        if not seen:
            return True
        return len(seen) < _NUM_SIZES and binding not in seen and self.has_met(binding)

    def avoids(self, number: int, binding: Binding) -> bool:
        """Whether a step of these sizes runs by another schedule that was compared, if one fits.

        Sizes that come for the first time do not wait for a comparison; but where no sizes come
        twice, some step has to.
        """
        if self.is_compared(number) or self.has_met(binding):
            return False
        self._num_avoided[number] += 1
        return self._num_avoided[number] <= _MOST_AVOIDED

    def runs(self, number: int, binding: Binding) -> None:
        """Note that `number` runs at these sizes."""
        if binding not in self._sizes(number):
            self._ran.setdefault(number, set()).add(binding)

    @property
    def num_sizes_uncompared(self) -> int:
        """Number of sizes at which schedules ran that were compared at other sizes alone."""
        rows = (sizes - self._sizes(number) for number, sizes in self._ran.items())
        return len(set().union(*rows))

    # -- ahead ------------------------------------------------------------------------------------

    def expect(self, number: int, *, now: bool) -> None:
        """Compare `number` before it is needed: in the step that made it, `now`, or in a later one.

        That is one whose sizes have come before.
        """
        if not self._sizes(number) and number not in self._now + self._later:
            (self._now if now else self._later).append(number)

    @property
    def expects(self) -> bool:
        """Whether some schedule is to be compared ahead of need."""
        return bool(self._now or self._later)

    def may_compare(self, binding: Binding) -> bool:
        """Whether a step of these sizes may compare some ahead, if they fit."""
        if not self._now and not self.has_met(binding):
            return False
        return any(binding not in self._sizes(it) for it in (*self._now, *self._later))

    def expected(self, binding: Binding, fitting: Container[int]) -> list[int]:
        """The schedules to compare in a step of these sizes, among those `fitting`, ahead of need.

        In a step that made none, one at most.
        """
        self._later = self._now + self._later
        now, self._now = self._now, []
        if not now and not self.has_met(binding):
            return []
        self._later = [
            number
            for number in self._later
            if number not in self.refused and len(self._sizes(number)) < _NUM_SIZES
        ]
        new = (it for it in self._later if binding not in self._sizes(it) and it in fitting)
        found = sorted(new, key=lambda it: len(self._sizes(it)))
        return [it for it in found if it in now] or found[:1]

    # -- comparing --------------------------------------------------------------------------------

    def settle(
        self, number: int, binding: Binding, others: list[int], compare: Compare
    ) -> tuple[int, str | None]:
        """The schedule to run, and what was wrong with `number`, if anything.

        Parameters
        ----------
        others
            Schedules that fit at these sizes.

        Notes
        -----
        A schedule that is already trusted decides over one that is not. If no trusted schedule
        fits, a new one is compared with another new one. Two that agree run, and are not compared
        again at these sizes, without being trusted to decide over others; of two that differ
        neither runs, and the trusted one runs, even if it takes more memory.
        """
        others = [one for one in others if one != number and one not in self.refused]
        trusted = [one for one in others if one in self._seen]
        if number in self._seen:
            others = trusted
        if not others:
            return number, None
        other = (trusted or others)[0]
        self.num_compared += 1
        wrong = compare(number, other)
        if wrong is None:
            self._note(binding)
            if trusted:
                self.trust(number, binding)
                self.trust(other, binding)
            else:
                for one in (number, other):
                    self._agreed.setdefault(one, set()).add(binding)
            return number, None
        if not trusted:
            other = next((one for one in self._seen if one not in self.refused), other)
        self.refused[number] = other
        ran = len(self._ran.pop(number, ()))
        if ran:
            wrong += f" (steps of {ran} sizes ran by it, which was compared at other sizes alone)"
        return other, wrong

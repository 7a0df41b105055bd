"""Memory levels below the device, to which a plan may copy checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..checks.value_checks import MAX_BYTES, check_seconds, shown
from ..dataflow.copies import HOST_LEVEL, Copy, copies_in
from ..dataflow.streams import DEVICE
from ..errors import InvalidWorkloadError, SchedsimError
from .links import parse_link

if TYPE_CHECKING:
    from ..dataflow.chain import Chain
    from ..dataflow.graph import Graph
    from ..simulation.schedule import Schedule


@dataclass(frozen=True, slots=True)
class MemoryLevel:
    """A memory with slots for checkpoints; writing and reading a checkpoint takes time.

    Parameters
    ----------
    num_slots
        How many checkpoints the memory holds at once.
    write_s, read_s
        Seconds to copy a checkpoint from the device, and back.
    """

    num_slots: int
    write_s: float
    read_s: float

    def __post_init__(self) -> None:
        slots = self.num_slots
        if isinstance(slots, bool) or not isinstance(slots, int) or slots < 0:
            raise SchedsimError(
                f"num_slots {slots!r} is not a number of checkpoints",
                hint="a whole number, 0 or more",
            )
        if slots > MAX_BYTES:
            raise SchedsimError(
                f"num_slots {shown(slots)} is more than any memory holds",
                hint="'all' has room for every checkpoint",
            )
        for name in ("write_s", "read_s"):
            try:
                check_seconds(getattr(self, name), name)
            except InvalidWorkloadError as error:
                raise SchedsimError(str(error), hint="seconds, finite and not negative") from None

    @classmethod
    def parse(cls, text: str, *, checkpoint_bytes: int, num_checkpoints: int) -> MemoryLevel:
        """A level as people write it: ``SLOTS:WRITE_S:READ_S``, or ``SLOTS@LINK``.

        ``all`` as SLOTS has room for every checkpoint. LINK is one of `schedsim.plans.links.LINKS`
        or a bandwidth; the times are then those of the largest checkpoint.

        Examples
        --------
        >>> MemoryLevel.parse("8:0.5:0.25", checkpoint_bytes=0, num_checkpoints=96)
        MemoryLevel(num_slots=8, write_s=0.5, read_s=0.25)
        >>> MemoryLevel.parse("all@25GB/s", checkpoint_bytes=10**9, num_checkpoints=96)
        MemoryLevel(num_slots=96, write_s=0.04, read_s=0.04)
        """
        count, at, link = text.partition("@")
        numbers = [count, "", ""] if at else text.split(":")
        hint = "SLOTS:WRITE_S:READ_S or SLOTS@LINK, as 32:0.01:0.01, all@pcie4 or 64@25GB/s"
        slots_given = numbers[0].isascii() and numbers[0].isdecimal() and len(numbers[0]) < 100
        if len(numbers) != 3 or not (numbers[0] == "all" or slots_given):
            raise SchedsimError(f"memory level {shown(text)} is not understood", hint=hint)
        slots = num_checkpoints if numbers[0] == "all" else int(numbers[0])
        if at:
            seconds = parse_link(link).time_s(checkpoint_bytes)
            return cls(slots, seconds, seconds)
        try:
            return cls(slots, float(numbers[1]), float(numbers[2]))
        except ValueError:
            raise SchedsimError(f"memory level {text!r} is not understood", hint=hint) from None


@dataclass(frozen=True)
class MemoryLevels:
    """The levels below the device, the fastest first.

    Copies between the device and a level run on streams of their own; `schedsim.dataflow.copies`
    says what levels, streams and ops are called.
    """

    levels: tuple[MemoryLevel, ...]

    @property
    def numbered(self) -> Iterable[tuple[int, MemoryLevel]]:
        """Pairs (number, level); host memory, the first level below the device, has number 2."""
        return enumerate(self.levels, start=HOST_LEVEL)

    def graph(self, workload: Chain | Graph, schedule: Schedule) -> Graph:
        """The graph of `workload` with the copies between levels that `schedule` runs."""
        graph = workload.graph
        run = copies_in(schedule.op_names, beside=graph.op_names)
        ops = []
        for number, level in self.numbered:
            for tensor in dict.fromkeys(copy.tensor for copy in run if copy.level == number):
                if graph.pool_of(tensor) != DEVICE:
                    raise SchedsimError(f"{tensor} does not live on the device")
                size = graph.size_of(tensor)
                ops.append(Copy(tensor, level=number).op(size, level.write_s))
                ops.append(Copy(tensor, back=True, level=number).op(size, level.read_s))
        return replace(graph, ops=(*graph.ops, *ops)) if ops else graph

    def capacities(self, budget_bytes: int) -> dict[str, int]:
        """Pool -> bytes, as the engine takes them; only the schedule bounds the use of levels."""
        return {DEVICE: budget_bytes}


def as_levels(levels: Sequence[MemoryLevel | tuple[int, float, float]]) -> MemoryLevels:
    """`MemoryLevels` of `levels`, each a `MemoryLevel` or ``(num_slots, write_s, read_s)``."""
    found = tuple(one if isinstance(one, MemoryLevel) else MemoryLevel(*one) for one in levels)
    return MemoryLevels(found)

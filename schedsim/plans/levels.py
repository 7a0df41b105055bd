"""Memory levels below the device: what a plan that checkpoints to them runs on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from .._checks import check_seconds
from ..dataflow.op import Op
from ..dataflow.queues import D2H, DEVICE, H2D, HOST
from ..errors import InvalidWorkloadError, SchedsimError
from .links import parse_link

if TYPE_CHECKING:
    from ..dataflow.chain import Chain
    from ..dataflow.graph import Graph
    from ..simulation.result import Simulation
    from ..simulation.schedule import Schedule


@dataclass(frozen=True, slots=True)
class MemoryLevel:
    """A memory that holds so many checkpoints, each of which takes time to write and to read.

    Parameters
    ----------
    num_slots
        Checkpoints held at once.
    write_s, read_s
        Seconds to copy one from the device, and back.
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
        for name in ("write_s", "read_s"):
            try:
                check_seconds(getattr(self, name), name)
            except InvalidWorkloadError as error:
                raise SchedsimError(str(error), hint="seconds, finite and not negative") from None

    @classmethod
    def parse(cls, text: str, *, checkpoint_bytes: int, num_checkpoints: int) -> MemoryLevel:
        """A level as people write it: ``SLOTS:WRITE_S:READ_S``, or ``SLOTS@LINK``.

        ``all`` as the number of slots has room for every checkpoint. A link is one of
        `schedsim.plans.links.LINKS` or a bandwidth; times are those of the largest checkpoint.

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
        if len(numbers) != 3 or not (numbers[0] == "all" or numbers[0].isdecimal()):
            raise SchedsimError(f"memory level {text!r} is not understood", hint=hint)
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

    Level 2 is the pool ``host``, written by ``d2h:x`` and read by ``h2d:x``; level 3, and so on, is
    the pool ``level3``, written by ``write3:x`` and read by ``read3:x``, on queues of these names.
    """

    levels: tuple[MemoryLevel, ...]

    @staticmethod
    def names(level: int) -> tuple[str, str, str]:
        """Queue to the level (2 or more), queue back, and its pool."""
        if level == 2:
            return D2H, H2D, HOST
        return f"write{level}", f"read{level}", f"level{level}"

    def graph(self, workload: Chain | Graph, schedule: Schedule) -> Graph:
        """The graph of `workload` with the copies between levels that `schedule` runs."""
        graph = workload.graph
        given = set(graph.op_names)
        copies = []
        for i, level in enumerate(self.levels):
            out, back, pool = self.names(i + 2)
            for tensor in _copied(schedule.op_names, (out, back), given):
                if graph.pool_of(tensor) != DEVICE:
                    raise SchedsimError(f"{tensor} does not live on the device")
                size = graph.size_of(tensor)
                there = f"{tensor}@{pool}"
                copies += [
                    Op(
                        f"{out}:{tensor}",
                        time_s=level.write_s,
                        reads=(tensor,),
                        writes={there: size},
                        queue=out,
                        pools={there: pool},
                        required=False,
                    ),
                    Op(
                        f"{back}:{tensor}",
                        phase="backward",
                        time_s=level.read_s,
                        reads=(there,),
                        writes={tensor: size},
                        queue=back,
                        required=False,
                    ),
                ]
        return replace(graph, ops=(*graph.ops, *copies)) if copies else graph

    def simulate(
        self, workload: Chain | Graph, schedule: Schedule, budget_bytes: int | None
    ) -> Simulation:
        """What `schedule`, copies included, costs; runs wait where the device has no room."""
        from ..simulation.simulator import simulate

        graph = self.graph(workload, schedule)
        if budget_bytes is None or graph.one_queue:
            return simulate(graph, schedule)
        return simulate(graph, schedule, capacities=self.capacities(budget_bytes))

    def capacities(self, budget_bytes: int) -> dict[str, int]:
        """Pool -> bytes, as the engine takes them; levels are bounded by the schedule itself."""
        return {DEVICE: budget_bytes}

    def to_options(self) -> dict[str, Any]:
        """What a plan's `options` store; `from_options` reads it."""
        return {"levels": [asdict(level) for level in self.levels]}

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> MemoryLevels | None:
        """The levels of a plan with these options; ``None`` for one without."""
        stored = options.get("levels")
        if stored is None:
            return None
        try:
            return cls(tuple(MemoryLevel(**level) for level in stored))
        except TypeError:
            raise SchedsimError(
                f"options.levels {stored!r} are not memory levels",
                hint="each has num_slots, write_s and read_s",
            ) from None


def as_levels(levels: Sequence[MemoryLevel | tuple[int, float, float]]) -> MemoryLevels:
    """Levels given as such, or as ``(num_slots, write_s, read_s)``."""
    found = tuple(one if isinstance(one, MemoryLevel) else MemoryLevel(*one) for one in levels)
    return MemoryLevels(found)


def _copied(names: Iterable[str], queues: tuple[str, str], given: set[str]) -> list[str]:
    """Tensors that ops called ``<queue>:<tensor>`` copy, but for those of the workload itself."""
    found = (name.partition(":") for name in names if name not in given)
    return list(dict.fromkeys(tensor for queue, _, tensor in found if queue in queues))

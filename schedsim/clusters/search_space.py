"""The settings among which a cluster's step is chosen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import SchedsimError
from ..workloads.architecture import Architecture
from .degrees import Degrees, product_in_words
from .fabric import Fabric
from .training import Training

_LEAST_PART = 4096
"""Least tokens of a sequence on a context-parallel rank."""
_MOST_STAGES = 64
_CHUNKS = (2, 3, 4, 6, 8)


@dataclass(frozen=True, slots=True)
class StepSettings:
    """One choice of everything but recomputation, a bound on its time, and an estimate of it.

    `least` is the least recomputation of each pipeline rank that its memory bound allows.
    """

    degrees: Degrees
    training: Training
    bound_s: float = 0.0
    estimate_s: float = 0.0
    least: tuple[str, ...] = ()

    @property
    def family(self) -> tuple[int | str, ...]:
        """What candidates have in common that differ in replicas and micro-batches alone."""
        of = self.degrees
        return (of.tensor, of.pipeline, of.context, of.expert, self.training.schedule)


def spread(candidates: Sequence[StepSettings]) -> list[StepSettings]:
    """`candidates` in another order: every second one is the first of a family not seen so far.

    The others come in the order given, and so do all once every family was seen. A search that is
    cut short so has looked at half as many families as candidates.
    """
    firsts: dict[tuple[int | str, ...], StepSettings] = {}
    for one in candidates:
        firsts.setdefault(one.family, one)
    found: list[StepSettings] = []
    seen: set[tuple[int | str, ...]] = set()
    taken: set[int] = set()
    waiting = list(firsts.values())
    for one in candidates:
        if id(one) in taken:
            continue
        unseen = next((other for other in waiting if other.family not in seen), None)
        for other in (one, unseen):
            if other is not None and id(other) not in taken:
                taken.add(id(other))
                seen.add(other.family)
                found.append(other)
    return found


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """The space of choices.

    Attributes
    ----------
    devices
        Number of devices.
    global_batch
        Sequences of a step, over all ranks.
    fixed
        Degrees that were given, by name.
    training
        Fixed settings; batch, micro-batches, schedule, chunks and recomputation are chosen.
    """

    devices: int
    global_batch: int
    fixed: Mapping[str, int]
    training: Training

    def candidates(self, model: Architecture, fabric: Fabric) -> Iterator[StepSettings]:
        """Every consistent choice, with bounds not yet set.

        Tensor-parallel ranks lie in one node; a context-parallel rank has at least 4,096 tokens of
        a
        sequence; there are at least as many micro-batches as stages.
        """
        for degrees, training in self.every(model, fabric):
            if self.refusal(model, degrees, training) is None:
                yield StepSettings(degrees, training)

    def check(self, model: Architecture, fabric: Fabric) -> None:
        """Raise `SchedsimError` where there is no candidate: what is wrong with the first one."""
        given = math.prod(
            count for name, count in self.fixed.items() if name not in ("expert", "whole_experts")
        )
        if self.devices % given:
            raise SchedsimError(
                f"--devices {self.devices} is not a multiple of {product_in_words(self.fixed)}",
                hint="leave some of them out: the search chooses them",
            )
        first = None
        for degrees, training in self.every(model, fabric):
            found = self.refusal(model, degrees, training)
            if found is None:
                return
            first = first or found
        raise first or SchedsimError(
            f"no degrees fit {self.devices} devices and {self.global_batch} sequences",
            hint="the data-parallel ranks must divide --global-batch",
        )

    def every(self, model: Architecture, fabric: Fabric) -> Iterator[tuple[Degrees, Training]]:
        """Every choice, consistent or not."""
        for degrees in self._degrees(model, fabric):
            if self.global_batch % degrees.data == 0:
                for training in self._trainings(degrees, self.global_batch // degrees.data):
                    yield degrees, training

    @staticmethod
    def refusal(model: Architecture, degrees: Degrees, training: Training) -> SchedsimError | None:
        """Why a choice is not consistent; ``None`` where it is."""
        try:
            degrees.check(model)
            training.check(model, degrees)
        except SchedsimError as error:
            return error
        return None

    def _degrees(self, model: Architecture, fabric: Fabric) -> Iterator[Degrees]:
        for tensor in self._choices("tensor", _divisors(self.devices, fabric.per_node)):
            most = min(_MOST_STAGES, model.num_layers)
            for pipeline in self._choices("pipeline", _divisors(self.devices, most)):
                parts = _divisors(self.devices, max(1, self.training.seq // _LEAST_PART))
                for context in self._choices("context", parts):
                    rest, odd = divmod(self.devices, tensor * pipeline * context)
                    if odd or not rest:
                        continue
                    copies = _divisors(rest, rest) if rest > 64 else [1]
                    for replicate in self._choices("replicate", copies):
                        if rest % replicate or (
                            "fsdp" in self.fixed and self.fixed["fsdp"] != rest // replicate
                        ):
                            continue
                        shards = rest // replicate * context
                        whole = bool(self.fixed.get("whole_experts", False))
                        ranks = shards * (tensor if whole else 1)
                        experts = _divisors(ranks, 64) if model.experts else [1]
                        for expert in self._choices("expert", experts):
                            yield Degrees(
                                *(rest // replicate, replicate, tensor, pipeline, context, expert),
                                whole_experts=whole,
                            )

    def _choices(self, name: str, free: list[int]) -> list[int]:
        return [self.fixed[name]] if name in self.fixed else free

    def _trainings(self, degrees: Degrees, batch: int) -> Iterator[Training]:
        for count in _divisors(batch, batch):
            if count < degrees.pipeline and degrees.pipeline > 1:
                continue
            base = replace(self.training, batch=batch, num_micro_batches=count, recompute="none")
            yield base
            if degrees.pipeline == 1:
                if self.training.state == "fsdp2":
                    yield replace(base, zero_stage=2)
                continue
            yield replace(base, schedule="zero-bubble")
            for chunks in _CHUNKS:
                yield replace(base, schedule="interleaved", num_chunks=chunks)


def _divisors(number: int, most: int) -> list[int]:
    """The divisors of `number` that are at most `most`.

    Examples
    --------
    >>> _divisors(280, 8), _divisors(16, 8)
    ([1, 2, 4, 5, 7, 8], [1, 2, 4, 8])
    """
    return [one for one in range(1, min(number, most) + 1) if number % one == 0]

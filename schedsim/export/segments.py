"""Checkpointed segments of a chain, as checkpoint wrappers around modules can express them.

A checkpointed segment keeps only its input. When its backward begins, the whole segment runs again
and keeps every saved bundle, as with torch.utils.checkpoint and jax.checkpoint; so does the last
segment.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from ..dataflow.chain import Chain
from ..errors import UnsupportedError
from ..plans.plan import Plan
from ..simulation.schedule import Schedule
from ..simulation.simulator import Simulation
from .choice import Choice, nearest, own_runs

Segments = tuple[tuple[int, int], ...]


def segment_schedule(chain: Chain, segments: Segments) -> Schedule:
    """The schedule of `chain` with the half-open ranges in `segments` checkpointed.

    Examples
    --------
    >>> chain = Chain.from_arrays("three", 1, forward_s=[1] * 3, backward_s=[1] * 3,
    ...                           output_bytes=[1] * 3, saved_bytes=[1] * 3)
    >>> segment_schedule(chain, ((0, 2),))
    Schedule(F0 F1 F2 loss B2 F0 F1 B1 B0)
    """
    num = chain.num_stages
    start_of = {stop - 1: start for start, stop in segments}
    runs = [*range(num), num]
    for stage in range(num - 1, -1, -1):
        if stage in start_of:
            runs += range(start_of[stage], stage + 1)
        runs.append(2 * num - stage)
    return Schedule(chain.op_names, runs)


def layer_range(chain: Chain) -> range:
    """The stages that are layers: the longest run of names that differ only by a number.

    Examples
    --------
    >>> from schedsim.workloads import WorkloadOptions, build_workload
    >>> layer_range(build_workload(WorkloadOptions(preset="gpt2")).workload)
    range(1, 13)
    """
    best, start = range(0), 0
    kinds = [re.sub(r"\d+", "#", stage.name) for stage in chain.stages]
    for i in range(1, len(kinds) + 1):
        if i == len(kinds) or kinds[i] != kinds[start]:
            if i - start > len(best):
                best = range(start, i)
            start = i
    return best


def layers_of(chain: Chain, target: str) -> range:
    """The layers of `chain`; `UnsupportedError` if it has none."""
    layers = layer_range(chain)
    if len(layers) < 2:
        raise UnsupportedError(
            f"{target} checkpoints layers, and {chain.name} has none that repeat",
            hint="export --to torch takes any chain",
        )
    return layers


def singles(stages: Iterable[int]) -> Segments:
    """A segment for each of `stages`."""
    return tuple((i, i + 1) for i in sorted(stages))


def input_of(stage: int) -> str:
    """The tensor that stage `stage` of a chain reads."""
    return f"a{stage}"


def held_inputs(segments: Segments) -> tuple[str, ...]:
    """Inputs of `segments` that a target can hold in host memory.

    The input of the step stays on the device, as the caller holds it.
    """
    return tuple(input_of(start) for start, _ in segments if start)


def plan_segments(chain: Chain, plan: Plan) -> Segments:
    """The segments that `plan` recomputes in one go; of overlapping segments, the first."""
    runs = own_runs(chain, plan).tolist()
    num = chain.num_stages
    after = runs[runs.index(num) + 1 :]
    found: list[tuple[int, int]] = []
    taken: set[int] = set()
    i = 0
    while i < len(after):
        if after[i] >= num:
            i += 1
            continue
        stop = i + 1
        while stop < len(after) and after[stop] == after[stop - 1] + 1 and after[stop] < num:
            stop += 1
        stages = range(after[i], after[stop - 1] + 1)
        if taken.isdisjoint(stages):
            taken.update(stages)
            found.append((stages.start, stages.stop))
        i = stop
    return tuple(sorted(found))


def segment_choices(chain: Chain, plan: Plan) -> Iterator[Choice]:
    """Segments of the plan, equal segments of every length, and the first k stages for every k."""
    everything = range(chain.num_stages)
    yield as_choice(chain, plan_segments(chain, plan))
    yield as_choice(chain, singles(repeated_stages(chain, plan)))
    for length in range(1, chain.num_stages + 1):
        starts = range(0, chain.num_stages, length)
        yield as_choice(chain, tuple((i, min(i + length, chain.num_stages)) for i in starts))
    yield from (as_choice(chain, singles(everything[:k])) for k in range(chain.num_stages))


def and_on_host(
    chain: Chain, plan: Plan, choices: Iterable[Choice], kept: int = 0
) -> Iterator[Choice]:
    """`choices`; with a link, also each with all inputs but the last `kept` in host memory."""
    for choice in choices:
        yield choice
        if plan.setting.link is not None:
            inputs = held_inputs(choice.data["segments"])
            yield on_host(chain, choice, inputs[: len(inputs) - kept])


def on_host(chain: Chain, choice: Choice, tensors: Sequence[str]) -> Choice:
    """`choice` with `tensors`, inputs of its segments, in host memory."""
    more = {key: value for key, value in choice.data.items() if key != "segments"}
    return as_choice(chain, choice.data["segments"], tuple(tensors), **more)


def repeated_stages(chain: Chain, plan: Plan) -> list[int]:
    """Stages whose forward the plan runs more than once."""
    runs = own_runs(chain, plan).tolist()
    return [i for i in range(chain.num_stages) if runs.count(i) > 1]


def flips(chain: Chain, choice: Choice, stages: Sequence[int]) -> Iterator[Choice]:
    """`choice` with one of `stages` checkpointed by itself, or without the segment around it.

    Inputs in host memory stay there; the input of a new segment goes there if all others are there.
    """
    segments: Segments = choice.data["segments"]
    everything = bool(choice.host) and choice.host == held_inputs(segments)
    for stage in stages:
        around = [s for s in segments if s[0] <= stage < s[1]]
        rest = [s for s in segments if s not in around]
        found = tuple(sorted(rest if around else [*rest, (stage, stage + 1)]))
        possible = held_inputs(found)
        host = possible if everything else tuple(t for t in possible if t in choice.host)
        yield as_choice(chain, found, host)


def host_flips(chain: Chain, choice: Choice) -> Iterator[Choice]:
    """`choice` with the input of one segment more or less in host memory."""
    for tensor in held_inputs(choice.data["segments"]):
        held = set(choice.host) ^ {tensor}
        inputs = held_inputs(choice.data["segments"])
        yield on_host(chain, choice, [one for one in inputs if one in held])


def as_choice(
    chain: Chain, segments: Segments, host: tuple[str, ...] = (), **data: object
) -> Choice:
    """`segments` as a choice, described in words."""
    covered = sum(stop - start for start, stop in segments)
    longest = max((stop - start for start, stop in segments), default=0)
    says = f"{covered} of {chain.num_stages} stages checkpointed"
    if longest > 1:
        says += f", in {len(segments)} segments of up to {longest}"
    if host:
        says += f", {len(host)} of their inputs in host memory"
    return Choice(segment_schedule(chain, segments), says, {"segments": segments, **data}, host)


def nearest_layers(
    chain: Chain, plan: Plan, target: str, *, offloads: bool = False
) -> tuple[Choice, Simulation]:
    """The nearest set of single layers that run again, for a `target` that takes any set.

    With `offloads`, the inputs of all these layers, or of none, may be in host memory.
    """
    layers = layers_of(chain, target)
    wanted = [i for i in repeated_stages(chain, plan) if i in layers]
    choices = [as_choice(chain, singles(wanted))]
    choices += [as_choice(chain, singles(layers[:k])) for k in range(len(layers) + 1)]
    tried = and_on_host(chain, plan, choices) if offloads else iter(choices)
    return nearest(chain, plan, tried, lambda choice: flips(chain, choice, layers))


def nearest_every_nth(
    chain: Chain, plan: Plan, target: str, most: int | None = None, kept: int = 0
) -> tuple[Choice, Simulation]:
    """No layers, or every n-th layer from the first, for targets that have such a setting.

    `most` bounds n. Either no inputs are in host memory, or all but the last `kept`.
    """
    layers = layers_of(chain, target)
    choices = [as_choice(chain, (), every=0)]
    for every in range(1, min(most or len(layers), len(layers)) + 1):
        choices.append(as_choice(chain, singles(layers[::every]), every=every))
    return nearest(chain, plan, and_on_host(chain, plan, choices, kept))


def chosen_layers(chain: Chain, choice: Choice) -> list[int]:
    """Starts of the segments of a choice, as indices of layers, ascending."""
    first = layer_range(chain).start
    return sorted({start - first for start, _ in choice.data["segments"]})

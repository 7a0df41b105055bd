"""Capture of a model as a chain, or a graph of blocks: sizes by storage, workspaces, times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from schedsim.dataflow.chain import Chain
from schedsim.dataflow.graph import Graph
from schedsim.errors import UnsupportedError
from schedsim.simulation.schedule import Schedule
from schedsim.units import format_seconds

from ..block_times import MOST_SPREAD
from ..capture.skeleton import count_extra_inputs
from ..dry_cuda import has_times
from ..guards.recording import Recorded, kept_python
from ..guards.watched_places import Places
from ..measure import get_meter, library_workspace_bytes
from ..measure.meters import no_collection
from ..ranks import ALONE, Ranks, ranks_of
from ..torch_private.pytrees import tree_map_only
from ..torch_private.storage_refs import version_of
from ..user_warnings import warn_user
from .bench import Bench
from .block_program import make_program
from .block_timing import IMPLAUSIBLE, measure_times, spread_of, step_seconds
from .forward_writes import undone_writes
from .gradients_made import (
    MadeGradients,
    forget_gradients,
    own_gradients,
    shared_parameters,
    trained_parameters,
)
from .held_in_circles import watched_circles
from .lowering import lowered
from .parts import Part, StepInputs, is_line, joined, named_parts, sequential_parts
from .recorded_blocks import record_blocks
from .repeated_forward import (
    PYTHON,
    Buffers,
    changed_buffers,
    copies,
    generators,
    nearly_equal,
    other_buffers,
    untouched,
)
from .runtime import StepLayout
from .scheduled_blocks import ScheduledBlocks, loss_of, split_inputs
from .sharded import Sharding, grouped_calls
from .sizes import Sizes, static_tensors, storage_keys, tensors_in
from .split import find_blocks


@dataclass(frozen=True)
class CapturedChain:
    """A model as a chain of blocks, with a method to train it by a schedule of that chain.

    Attributes
    ----------
    workload
        The chain; a graph where the blocks form no line (a U-Net).
    notes
        What was joined, assumed or left out, one line each.
    meter
        Name of the meter that measured the workspaces.
    times_spread
        The spread of the measured times over rounds, as a share of their medians; ``None`` where
        no times were measured.
    keeps_gradients
        Whether gradients count as resident from before the step. Otherwise they count from the
        backward that makes them, as workspace of the runs after it.
    """

    workload: Chain | Graph
    model: nn.Module
    inputs: tuple[Any, ...]
    keywords: Mapping[str, Any]
    layout: StepLayout
    meter: str
    notes: tuple[str, ...]
    times_spread: float | None = None
    keeps_gradients: bool = False

    @property
    def chain(self) -> Chain:
        """The chain; raises `UnsupportedError` where the blocks form no line."""
        if isinstance(self.workload, Chain):
            return self.workload
        raise UnsupportedError(
            f"the blocks of {self.workload.name} are no line: some value is read twice",
            hint="use the graph in .workload",
        )

    def module(
        self,
        schedule: Schedule,
        graph: Graph | None = None,
        capacities: Mapping[str, int] | None = None,
    ) -> ScheduledBlocks:
        """The model, trained by `schedule`: ``module(*inputs)`` gives the loss.

        Parameters
        ----------
        graph
            `workload` with the copies to host memory that the schedule runs
            (`schedsim.plans.links.with_copies`).
        capacities
            By pool, the capacities within which these copies were planned.

        Raises
        ------
        InvalidScheduleError
            The schedule is not legal on `workload`, or runs the loss or a backward twice.
        """
        workload = self.workload if graph is None else graph
        program = make_program(workload, schedule, len(self.layout.parts), capacities)
        return ScheduledBlocks(self.model, self.layout, program)

    @property
    def with_input_held(self) -> CapturedChain:
        """The same capture with the input counted as static: the caller holds the input, so that a
        copy of it to the host would free nothing."""
        workload = self.workload
        static_bytes = workload.static_bytes
        if isinstance(workload, Chain):
            static_bytes += workload.input_bytes
            held: Chain | Graph = replace(workload, input_bytes=0, static_bytes=static_bytes)
        else:
            static_bytes += sum(workload.inputs.values())
            nothing = dict.fromkeys(workload.inputs, 0)
            held = replace(workload, inputs=nothing, static_bytes=static_bytes)
        return replace(self, workload=held)

    @property
    def static_tensors(self) -> list[Tensor]:
        """Parameters, buffers and the loss's own tensors."""
        return static_tensors(self.model, self.layout.loss)


def capture_chain(
    model: nn.Module,
    inputs: Any,
    loss: Callable[..., Tensor] | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    blocks: Sequence[nn.Module] | None = None,
    name: str | None = None,
    meter: str | None = None,
    rounds: int = 7,
    known_times: Callable[[Chain | Graph], tuple[Chain | Graph, str] | None] | None = None,
    movable: bool = False,
    recorded: Recorded | None = None,
    ranks: Ranks | None = None,
) -> CapturedChain:
    """`model` as a chain of its blocks, with the sizes and times measured on its device.

    The blocks are the items of an `nn.Sequential`; or the blocks that ``model.blocks()`` lists as
    (name, module, names read); or `blocks`; or the longest line of repeated blocks found in the
    model, with what runs before and after them as first and last stages. A block that changes its
    input in place, or returns a view of it, is joined to the block before.

    Parameters
    ----------
    inputs
        Inputs of one step: a tuple, one tensor, or a mapping of keywords.
    loss
        Makes a scalar of the model's output; ``None`` where the output is the loss, or has a
        ``.loss``. What the loss takes besides the output comes last among `inputs`: ``(x, target)``
        for ``cross_entropy``.
    kwargs
        Keyword inputs.
    meter
        The meter that counts the workspaces: ``"storage"`` (the default on the CPU),
        ``"allocator"``, or ``"cuda"`` (the default on CUDA); see `schedsim.validation.measure`.
    rounds
        Number of timed runs of each block, of which the median counts. 0 leaves the times at zero.
    known_times
        A function from the workload without times to the workload with times, or to ``None`` if
        they must be measured.
    movable
        Whether to refuse blocks that keep bytes which no copy to the host finds.
    recorded
        What a forward of the step was seen to do besides computing, so that repeated runs draw the
        same random numbers of Python, and change what Python holds only once.
    ranks
        The ranks that measure together, because `model` communicates; by default all ranks over
        which the model is sharded. They run the same steps in the same order.

    Returns
    -------
    CapturedChain

    Raises
    ------
    UnsupportedError
        No line of blocks is found, or a block cannot be run twice.

    Notes
    -----
    Bytes are measured block by block; times in whole steps, of which one kind replays every block
    and the other stores all, where that fits. Parameters, their gradients, buffers and random
    numbers are restored. Static bytes are parameters, buffers, and the tensors of the loss and of
    side inputs; also gradients, if parameters have some when this is called. Otherwise gradients of
    parameters count from the backward that makes them. The time of a forward is what replaying the
    block adds to a step, and the times of store-all add up to what was measured.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))
    >>> captured = capture_chain(model, torch.randn(4, 8), lambda y: y.square().mean())
    >>> captured.chain.num_stages, captured.chain.stages[0].output_bytes
    (3, 128)
    """
    if ranks is None:
        found = ranks_of(model)
        ranks = found if found.bound else ALONE
    arguments, keywords = _arguments(inputs, kwargs)
    num_extra = count_extra_inputs(model, loss, len(arguments))
    step = split_inputs(arguments, keywords, num_extra)
    parts = _parts(model, step, blocks, recorded)
    if loss is None:
        parts[-1] = _giving_loss(parts[-1])
    device = _device(model)
    notes: list[str] = []
    library = library_workspace_bytes(device) if device.type == "cuda" else 0
    devices, python = generators(model), Places(())
    if recorded is not None:
        devices = (*devices, PYTHON) if recorded.draws else devices
        python = recorded.places
    with (
        untouched(model, loss),
        undone_writes(model) as writes,
        own_gradients(model, loss) as keeps_gradients,
        no_collection(),
    ):
        with (
            torch.no_grad(),
            untouched(model),
            kept_python(recorded),
            grouped_calls(model, parts) as calls,
            writes.seen(),
            watched_circles((static_tensors(model, loss), arguments, keywords)) as circles,
        ):
            whole = model(*step.arguments, **step.keywords)
            whole = loss_of(whole) if loss is None else whole
        writes.refuse_parameters()
        if circles.line is not None:
            warn_user(circles.line)
            notes.append(circles.line)
        sharding = Sharding.of(model, parts, calls)
        parts, values, state = _settled(model, parts, step, notes)
        if sharding is not None:
            sharding = Sharding.of(model, parts, calls)
        _check_whole(whole, values[-1])
        del whole
        sizes = Sizes.of(parts, values, step, model, loss)
        if sharding is None:
            num = len(parts)
            parts, values, state = _frozen_joined(parts, values, state, sizes, notes)
            if len(parts) < num:
                sizes = Sizes.of(parts, values, step, model, loss)
        needs = sizes.needs_gradient
        layout = StepLayout(parts, loss, num_extra, needs, state, devices, python, sharding)
        layout = replace(layout, shared=shared_parameters(parts, loss))
        if sharding is not None and meter is None and device.type == "cpu":
            meter = "allocator"  # the storages of sharded parameters are emptied and filled again
        chosen = get_meter(meter, device)
        made = MadeGradients(trained_parameters(model, loss))
        bench = Bench(layout, step, sizes, chosen, device, ranks, made)
        rows = bench.measure_bytes(values)
        layout = replace(layout, releases_output=bench.releases_output)
        if movable:
            for i, row in enumerate(rows[:-1]):
                bench.check_movable(i, values, row.saved_bytes - sizes.value_bytes[i + 1])
        workload = lowered(name or type(model).__name__, parts, sizes, rows, library)
        timed = known_times(workload) if known_times is not None else None
        spread: float | None = None
        # Where one rank measures, all ranks do: each step of a rank is a collective of all.
        known = ranks.all(timed is not None, "look up times")
        if known and timed is not None and rounds and has_times(device):
            # One step is timed now: the kept times may be of a machine that was busy then.
            kept_s = timed[0].store_all_s
            now_s = step_seconds(layout, step, workload, device)
            known = ranks.all(kept_s <= IMPLAUSIBLE * now_s, "check times")
            if not known:
                notes.append(
                    f"times: those kept say {format_seconds(kept_s)} for a step that now took "
                    f"{format_seconds(now_s)}: measured again"
                )
        if known and timed is not None:
            workload, note = timed
            notes.append(note)
        elif rounds:
            del values
            how = measure_times(layout, step, workload, rows, device, rounds, ranks)
            spread = spread_of(rows)
            notes.append(
                f"times: medians over {rounds} rounds of {how}, spread {spread:.0%}"
                + ("; not kept: is the machine busy?" if spread > MOST_SPREAD else "")
            )
            workload = lowered(workload.name, parts, sizes, rows, library)
        if chosen.name == "cuda" and sharding is None and ranks.alone:
            forget_gradients(model, loss)
            requests = record_blocks(
                workload, layout, step, model, device, keeps_gradients=keeps_gradients
            )
            workload = replace(workload, recorded=requests)
    if library:
        notes.append(f"matrix libraries keep {library} bytes on the device, counted as static")
    return CapturedChain(
        workload,
        model,
        arguments,
        keywords,
        layout,
        chosen.name,
        tuple(notes),
        times_spread=spread,
        keeps_gradients=keeps_gradients,
    )


def _arguments(
    inputs: Any, kwargs: Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, Mapping):
        return (), {**inputs, **(kwargs or {})}
    arguments = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    return arguments, dict(kwargs or {})


def _parts(
    model: nn.Module,
    step: StepInputs,
    blocks: Sequence[nn.Module] | None,
    recorded: Recorded | None,
) -> list[Part]:
    plain = isinstance(model, nn.Sequential) and type(model).forward is nn.Sequential.forward
    if blocks is None and plain and isinstance(model, nn.Sequential) and len(model):
        return sequential_parts(model)
    listed = getattr(model, "blocks", None)
    if blocks is None and callable(listed) and not isinstance(listed, nn.Module):
        return named_parts(listed())
    split = find_blocks(model, step.arguments, step.keywords, blocks)
    if recorded is not None:
        split.watch(recorded)
    names = {id(module): name for name, module in model.named_modules()}
    return split.parts([names[id(block)] for block in split.blocks])


def _frozen_joined(
    parts: Sequence[Part],
    values: Sequence[Any],
    state: Sequence[Buffers],
    sizes: Sizes,
    notes: list[str],
) -> tuple[list[Part], list[Any], list[Buffers]]:
    """Parts of a line without those first ones whose outputs need no gradient.

    A plain step drops such an output once the next part has read it; a stage's input stays until
    its backward. Frozen parts become one. An embedding alone goes to the first trained part, which
    then reads the input of the step: to look rows up again takes almost no time.
    """
    flows = [any(needs) for needs in sizes.needs_gradient[1:]]
    frozen = flows.index(True) if True in flows else 0
    until = frozen  # how many parts become one
    if frozen == 1 and _only_looks_up(parts[0]):
        until = 2
    if until < 2 or not is_line(parts) or len(parts) <= until:
        return list(parts), list(values), list(state)
    first, buffers = parts[0], state[0]
    for part, touched in zip(parts[1:until], state[1:until], strict=True):
        first, buffers = joined(first, part), buffers + touched
    notes.append(f"{first.name}: one part, as its first outputs need no gradient")
    return (
        [first, *(replace(p, reads=(i,)) for i, p in enumerate(parts[until:], 1))],
        [values[0], *values[until:]],
        [buffers, *state[until:]],
    )


def _only_looks_up(part: Part) -> bool:
    """Whether all parameters of a part are those of embeddings."""
    modules = [module for outer in part.modules for module in outer.modules()]
    own = [m for m in modules if any(True for _ in m.parameters(recurse=False))]
    return bool(own) and all(isinstance(module, nn.Embedding) for module in own)


def _giving_loss(part: Part) -> Part:
    def call(step: StepInputs, *values: Any) -> Any:
        return loss_of(part.call(step, *values))

    return replace(part, call=call)


def _device(model: nn.Module) -> torch.device:
    found = next(model.parameters(), None)
    if found is None:
        raise UnsupportedError("the model has no parameters", hint="there is nothing to train")
    if found.device.type == "meta":
        raise UnsupportedError(
            "the model is on the meta device, where nothing can be measured",
            hint="build it on cpu or cuda, or use the op level",
        )
    return found.device


def _check_whole(whole: Any, composed: Any) -> None:
    """Refuse blocks whose composition is another function than the model."""
    pairs = list(zip(tensors_in(whole), tensors_in(composed), strict=False))
    # Nearly equal is enough: some kernels add in another order each time.
    if not pairs or not all(a.shape == b.shape and nearly_equal(a, b) for a, b in pairs):
        raise UnsupportedError(
            "the blocks one after another do not give what the model gives",
            hint="something else is used between them: list other blocks, or use --level op",
        )


def _check_side(parts: Sequence[Part], step: StepInputs) -> None:
    """Refuse side inputs of blocks that need a gradient."""
    given = StepInputs(step.arguments, step.keywords, step.extra)
    with torch.enable_grad():
        parts[0].call(given)
    side = [t for args, kwargs in given.side for t in tensors_in((args, kwargs))]
    if any(tensor.requires_grad for tensor in side):
        raise UnsupportedError(
            "a block takes a second tensor that needs a gradient",
            hint="only one activation may pass between blocks; use --level op",
        )


def _settled(
    model: nn.Module, parts: Sequence[Part], step: StepInputs, notes: list[str]
) -> tuple[list[Part], list[Any], list[Buffers]]:
    """Parts that do not change their inputs, the value of each, and the buffers that each changes.

    A part that changes what it reads in place, or whose output is a view of what it reads, could
    not be run again by itself, or its memory would be counted twice. It is joined to the part
    before.
    """
    settled: list[Part] = []
    values: list[Any] = [(step.arguments, dict(step.keywords), step.extra)]
    state: list[Buffers] = []
    given = storage_keys(values[0])
    moved: dict[int, int] = {0: 0}  # value before joining -> after
    line = is_line(parts)
    for i, part in enumerate(parts):
        part = replace(part, reads=tuple(moved[value] for value in part.reads))
        read = [values[value] if value else None for value in part.reads]
        watched = tensors_in(read) + (tensors_in(values[0]) if 0 in part.reads else [])
        versions = [version_of(tensor) for tensor in watched]
        before = copies(other_buffers(part.modules))
        with torch.no_grad():
            out = tree_map_only(Tensor, Tensor.detach, part.call(step, *read))
        changed = [version_of(tensor) for tensor in watched] != versions
        aliased = bool(storage_keys(read) & (storage_keys(out) - given))
        touched = changed_buffers(before)
        kept = [(m, n, b) for m, n, b in other_buffers(part.modules) if (m, n) in touched]
        if changed or aliased:
            why = "changes its input in place" if changed else "hands on a view of its input"
            if 0 in part.reads or not line:
                raise UnsupportedError(
                    f"block {part.name!r} {why}, so that it cannot be run again by itself",
                    hint="let it make its own output (inplace=False, or a copy)",
                )
            notes.append(f"{part.name} {why}: joined to {settled[-1].name}")
            settled[-1] = joined(settled[-1], part)
            values[-1] = out
            state[-1] = state[-1] + kept
        else:
            settled.append(part)
            values.append(out)
            state.append(kept)
        moved[i + 1] = len(settled)
    if step.side:
        _check_side(parts, step)
    return settled, values, state

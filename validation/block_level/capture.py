"""From a model to a chain, or a graph of blocks: sizes by storage, workspaces, times."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only

from schedsim.chain import Chain, Stage
from schedsim.errors import UnsupportedError
from schedsim.graph import Graph, Op
from schedsim.schedule import Schedule

from ..measure import Meter, get_meter, library_workspace_bytes, storage_bytes
from ..measure.meters import no_collection
from ..measure.storage import storages
from ..measure.timing import time_once
from .module import ScheduledModule, loss_of
from .parts import Part, StepInputs, is_line, joined, named_parts, sequential_parts
from .program import Program, make_program
from .replay import Buffers, changed_buffers, copies, generators, other_buffers, untouched
from .runtime import Layout, Step
from .split import find_blocks


@dataclass(frozen=True)
class CapturedChain:
    """A model as a chain of blocks, and how to train it by a schedule of that chain.

    Attributes
    ----------
    workload
        The chain; a graph where the blocks are no line (a U-Net).
    notes
        What was joined, assumed or left out, a line each.
    meter
        Name of the meter that the workspaces are from.
    """

    workload: Chain | Graph
    model: nn.Module
    inputs: tuple[Any, ...]
    keywords: Mapping[str, Any]
    layout: Layout
    meter: str
    notes: tuple[str, ...]

    @property
    def chain(self) -> Chain:
        """The chain; `UnsupportedError` where the blocks are no line."""
        if isinstance(self.workload, Chain):
            return self.workload
        raise UnsupportedError(
            f"the blocks of {self.workload.name} are no line: some value is read twice",
            hint="use the graph in .workload",
        )

    def module(self, schedule: Schedule) -> ScheduledModule:
        """The model, trained by `schedule`: ``module(*inputs)`` gives the loss.

        Raises
        ------
        InvalidScheduleError
            The schedule is not legal on `workload`, or runs the loss or a backward twice.
        """
        program = make_program(self.workload, schedule, len(self.layout.parts))
        return ScheduledModule(self.model, self.layout, program)

    @property
    def static_tensors(self) -> list[Tensor]:
        """Parameters, buffers and the loss's own tensors."""
        return static_tensors(self.model, self.layout.loss)


def capture_chain(
    model: nn.Module,
    inputs: Any,
    loss: Callable[[Any], Tensor] | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    blocks: Sequence[nn.Module] | None = None,
    name: str | None = None,
    meter: str | None = None,
    rounds: int = 5,
) -> CapturedChain:
    """`model` as a chain of its blocks, with the sizes and times measured on its device.

    The blocks are the items of an `nn.Sequential`; or what ``model.blocks()`` lists as (name,
    module, names read); or `blocks`, or the longest line of repeated blocks found in the model,
    with what is before and after them as first and last stages. A block that changes its input in
    place, or hands on a view of it, is joined to the one before.

    Parameters
    ----------
    inputs
        Of one step: a tuple, one tensor, or a mapping of keywords.
    loss
        Makes a scalar of the model's output; ``None`` where the output is one, or has ``.loss``.
    kwargs
        Keyword inputs.
    meter
        What counts the workspaces: ``"storage"`` (the default on the CPU), ``"allocator"``, or
        ``"cuda"`` (the default there); see `schedsim.validation.measure`.
    rounds
        Timed runs per block; the medians are taken. 0 leaves the times at zero.

    Returns
    -------
    CapturedChain

    Raises
    ------
    UnsupportedError
        No line of blocks is found, or a block cannot be run twice.

    Notes
    -----
    Each block is run some times, one at a time: about ``2 * rounds + 6`` forwards and
    ``rounds + 2`` backwards of each. Parameters, their gradients, buffers and random numbers are
    left as they were. Static bytes are parameters, gradients, buffers and the tensors of the loss
    and of side inputs. A forward's time is that of a run that keeps nothing; what keeping costs
    more is in the backward's time, as every step pays it once.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))
    >>> captured = capture_chain(model, torch.randn(4, 8), lambda y: y.square().mean())
    >>> captured.chain.num_stages, captured.chain.stages[0].output_bytes
    (3, 128)
    """
    arguments, keywords = _arguments(inputs, kwargs)
    step = StepInputs(arguments, keywords)
    parts = _parts(model, step, blocks)
    if loss is None:
        parts[-1] = _giving_loss(parts[-1])
    device = _device(model)
    notes: list[str] = []
    library = library_workspace_bytes(device) if device.type == "cuda" else 0
    with untouched(model), _own_gradients(model), no_collection():
        parts, values, state = _settled(model, parts, step, notes)
        sizes = _Sizes.of(parts, values, step, model, loss)
        layout = Layout(parts, loss, sizes.needs_gradient, state, generators(model))
        chosen = get_meter(meter, device)
        measured = _Bench(layout, step, sizes, chosen, device).measure(values, rounds)
    if library:
        notes.append(f"matrix libraries keep {library} bytes on the device, counted as static")
    workload = _workload(name or type(model).__name__, parts, sizes, measured, library)
    return CapturedChain(workload, model, arguments, keywords, layout, chosen.name, tuple(notes))


def _arguments(
    inputs: Any, kwargs: Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, Mapping):
        return (), {**inputs, **(kwargs or {})}
    arguments = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    return arguments, dict(kwargs or {})


def _parts(model: nn.Module, step: StepInputs, blocks: Sequence[nn.Module] | None) -> list[Part]:
    if blocks is None and type(model).forward is nn.Sequential.forward and len(model):
        assert isinstance(model, nn.Sequential)
        return sequential_parts(model)
    listed = getattr(model, "blocks", None)
    if blocks is None and callable(listed) and not isinstance(listed, nn.Module):
        return named_parts(listed())
    split = find_blocks(model, step.arguments, step.keywords, blocks)
    names = {id(module): name for name, module in model.named_modules()}
    return split.parts([names[id(block)] for block in split.blocks])


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


def static_tensors(model: nn.Module, loss: Any) -> list[Tensor]:
    """Parameters and buffers of the model and of the loss, where that is a module."""
    found = [*model.parameters(), *model.buffers()]
    if isinstance(loss, nn.Module):
        found += [*loss.parameters(), *loss.buffers()]
    return found


@contextmanager
def _own_gradients(model: nn.Module) -> Any:
    """Gradients of zeros during the block, and the ones that were there after it."""
    own = [(p, p.grad) for p in model.parameters()]
    try:
        for parameter, _ in own:
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        yield
    finally:
        for parameter, gradient in own:
            parameter.grad = gradient


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _keys(tree: Any) -> set[int]:
    return {storage._cdata for storage in storages(tree)}


def _settled(
    model: nn.Module, parts: Sequence[Part], step: StepInputs, notes: list[str]
) -> tuple[list[Part], list[Any], list[Buffers]]:
    """Parts that leave their inputs alone, the value of each, and the buffers that each changes.

    A part that changes what it reads in place, or whose output is a view of it, could not be run
    again by itself, or would have its memory counted twice: it is joined to the part before.
    """
    settled: list[Part] = []
    values: list[Any] = [(step.arguments, dict(step.keywords))]
    state: list[Buffers] = []
    given = _keys(values[0])
    moved: dict[int, int] = {0: 0}  # value before joining -> after
    line = is_line(parts)
    for i, part in enumerate(parts):
        part = replace(part, reads=tuple(moved[value] for value in part.reads))
        read = [values[value] if value else None for value in part.reads]
        watched = _tensors(read) + (_tensors(values[0]) if 0 in part.reads else [])
        versions = [tensor._version for tensor in watched]
        before = copies(other_buffers(part.modules))
        with torch.no_grad():
            out = tree_map_only(Tensor, Tensor.detach, part.call(step, *read))
        changed = [tensor._version for tensor in watched] != versions
        aliased = bool(_keys(read) & (_keys(out) - given))
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
    side = [t for args, kwargs in step.side for t in _tensors((args, kwargs))]
    if any(tensor.requires_grad for tensor in side):
        raise UnsupportedError(
            "a block takes a second tensor that needs a gradient",
            hint="only one activation may pass between blocks; use --level op",
        )
    return settled, values, state


@dataclass(frozen=True)
class _Sizes:
    """Bytes of the values, and what is always resident."""

    value_bytes: tuple[int, ...]
    static_bytes: int
    needs_gradient: tuple[tuple[bool, ...], ...]

    @classmethod
    def of(
        cls,
        parts: Sequence[Part],
        values: Sequence[Any],
        step: StepInputs,
        model: nn.Module,
        loss: Any,
    ) -> _Sizes:
        resident = static_tensors(model, loss)
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        side = [t for args, kwargs in step.side for t in _tensors((args, kwargs))]
        # The loss and the gradient it is given, two scalars, are there through the backward.
        scalars = 2 * torch.get_default_dtype().itemsize
        static = storage_bytes([*resident, *gradients, *side]) + scalars
        known = _keys([*resident, *side])
        sizes = []
        for number, value in enumerate(values):
            tensors = [t for t in _tensors(value) if t.untyped_storage()._cdata not in known]
            sizes.append(storage_bytes(tensors))
            if number == 0:
                known |= _keys(value)  # what passes the input on adds nothing
        needs: list[tuple[bool, ...]] = [tuple(False for _ in tree_flatten(values[0])[0])]
        for i, part in enumerate(parts):
            needs.append(_needs(part, step, values, values[i + 1], needs))
        return cls(tuple(sizes), static, tuple(needs))


def _needs(
    part: Part,
    step: StepInputs,
    values: Sequence[Any],
    output: Any,
    needs: Sequence[tuple[bool, ...]],
) -> tuple[bool, ...]:
    """Of the leaves of a part's output, whether they have a gradient in training."""
    trains = any(p.requires_grad for module in part.modules for p in module.parameters())
    flows = any(any(needs[value]) for value in part.reads)
    if not (trains or flows):
        return tuple(False for _ in tree_flatten(output)[0])
    read = []
    for value in part.reads:
        leaves, spec = tree_flatten(values[value] if value else None)
        for i, wanted in enumerate(needs[value] if value else ()):
            if wanted:  # a new tensor of the same data, which requires a gradient
                leaves[i] = leaves[i].detach().requires_grad_()
        read.append(spec.unflatten(leaves))
    with torch.enable_grad():
        out = part.call(step, *read)
    return tuple(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in tree_flatten(out)[0])


@dataclass
class _Measured:
    """Of one part, bytes and lists of times."""

    saved_bytes: int = 0
    forward_workspace_bytes: int = 0
    saving_workspace_bytes: int = 0
    backward_workspace_bytes: int = 0
    forward_s: list[float] = field(default_factory=list)
    saving_s: list[float] = field(default_factory=list)
    backward_s: list[float] = field(default_factory=list)


class _Bench:
    """Runs the ops of single parts, as a step does, and measures them."""

    def __init__(
        self, layout: Layout, step: StepInputs, sizes: _Sizes, meter: Meter, device: torch.device
    ) -> None:
        self.layout, self.inputs, self.sizes = layout, step, sizes
        self.meter, self.device = meter, device

    def measure(self, values: list[Any], rounds: int) -> list[_Measured]:
        """A row per part, the loss last."""
        num = len(self.layout.parts)
        rows = [_Measured() for _ in range(num + 1)]
        for i in range(num + 1):
            self._once(i, values)  # warm: libraries choose kernels, caches fill
            self._bytes(i, values, rows[i])
        for _ in range(rounds):
            for i in range(num + 1):
                self._times(i, values, rows[i])
        return rows

    def _step(self, values: list[Any]) -> Step:
        step = Step(self.layout, Program((), 0), self.inputs)
        step.values = dict(enumerate(values))
        del step.values[0]
        return step

    def _ops(self, i: int, values: list[Any]) -> tuple[Any, Any, Any, Any]:
        """(forward, saving forward, give a gradient, backward) of part i, to be run in order."""
        step = self._step(values)
        num = len(self.layout.parts)
        if i == num:
            scalar = torch.ones((), device=self.device)

            def loss_forward() -> Any:
                return step._loss_forward()

            def loss_backward() -> Any:
                step._loss_backward(scalar)
                return step.gradients

            return None, loss_forward, None, loss_backward
        part = self.layout.parts[i]
        step.values.pop(i + 1, None)  # made anew

        def forward() -> Any:
            with torch.no_grad():
                read = [step.values.get(value) for value in part.reads]
                return tree_map_only(Tensor, Tensor.detach, part.call(self.inputs, *read))

        def saving() -> Any:
            out = step._saving(part, i)
            step.values[i + 1] = tree_map_only(Tensor, Tensor.detach, out)

        consumers = [c for c, other in enumerate(self.layout.parts) if i + 1 in other.reads]

        def give() -> Any:
            needs = self.layout.needs_gradient[i + 1]
            leaves = tree_flatten(step.values[i + 1])[0]
            for consumer in consumers or [num]:
                step.gradients[i + 1, consumer] = [
                    torch.ones_like(leaf) if wanted else None
                    for leaf, wanted in zip(leaves, needs, strict=True)
                ]

        def backward() -> Any:
            step._backward(i)
            return step.gradients

        return forward, saving, give, backward

    def _once(self, i: int, values: list[Any]) -> None:
        for run in self._ops(i, values):
            if run is not None:
                run()

    def _bytes(self, i: int, values: list[Any], row: _Measured) -> None:
        forward, saving, give, backward = self._ops(i, values)
        sizes = self.sizes.value_bytes
        if forward is None:  # the loss: both halves are one op, which writes the gradient
            first, second = self.meter.read(saving, backward)
            most = max(first.peak_bytes, second.peak_bytes)
            row.forward_workspace_bytes = max(0, most - sizes[i])
            return
        out = sizes[i + 1]
        [alone] = self.meter.read(forward)
        row.forward_workspace_bytes = max(0, alone.peak_bytes - out)
        del alone
        kept, _, pulled = self.meter.read(saving, give, backward)
        row.saved_bytes = max(out, kept.end_bytes)
        row.saving_workspace_bytes = max(0, kept.peak_bytes - row.saved_bytes)
        consumers = max(1, sum(i + 1 in part.reads for part in self.layout.parts))
        written = sum(sizes[value] for value in self.layout.parts[i].reads if value)
        charged = row.saved_bytes + consumers * out + written
        row.backward_workspace_bytes = max(0, pulled.peak_bytes - charged)

    def _times(self, i: int, values: list[Any], row: _Measured) -> None:
        forward, saving, give, backward = self._ops(i, values)
        if forward is not None:
            row.forward_s.append(time_once(forward, self.device))
        row.saving_s.append(time_once(saving, self.device))
        if give is not None:
            give()
        row.backward_s.append(time_once(backward, self.device))


def _workload(
    name: str, parts: Sequence[Part], sizes: _Sizes, rows: Sequence[_Measured], library: int
) -> Chain | Graph:
    times = _times(parts, sizes, rows)
    loss_s = sum(map(_median, (rows[-1].saving_s, rows[-1].backward_s)))
    loss_workspace = rows[-1].forward_workspace_bytes
    static = sizes.static_bytes + library
    names = _unique([part.name for part in parts])
    stages = [
        Stage(
            names[i],
            forward_s,
            backward_s,
            sizes.value_bytes[i + 1],
            row.saved_bytes,
            row.forward_workspace_bytes,
            row.backward_workspace_bytes,
            row.saving_workspace_bytes,
        )
        for i, (row, (forward_s, backward_s)) in enumerate(zip(rows, times, strict=False))
    ]
    if is_line(parts):
        return Chain(name, sizes.value_bytes[0], tuple(stages), static, loss_s, loss_workspace)
    return _graph(name, parts, sizes, stages, static, loss_s, loss_workspace)


def _graph(
    name: str,
    parts: Sequence[Part],
    sizes: _Sizes,
    stages: Sequence[Stage],
    static_bytes: int,
    loss_s: float,
    loss_workspace_bytes: int,
) -> Graph:
    """The blocks as a graph, lowered as a chain is; a gradient per reader of each value."""
    num = len(parts)
    size = sizes.value_bytes
    readers = {
        value: [i for i, part in enumerate(parts) if value in part.reads]
        for value in range(num + 1)
    }
    forward: list[Op] = []
    backward: list[Op] = []
    for i, (part, stage) in enumerate(zip(parts, stages, strict=True)):
        writes = {f"a{i + 1}": stage.output_bytes}
        bundle = f"r{i + 1}"
        optional: tuple[str, ...] = ()
        if stage.saved_bytes > stage.output_bytes:
            writes[bundle] = stage.saved_bytes - stage.output_bytes
            optional = (bundle,)
        read = tuple(f"a{value}" for value in part.reads)
        forward.append(
            Op(
                f"F{i}",
                "forward",
                stage.forward_s,
                stage.forward_workspace_bytes,
                read,
                writes,
                optional,
                saving_workspace_bytes=stage.saving_workspace_bytes,
            )
        )
        from_ = [f"d{i + 1}.{k}" for k in readers[i + 1]]
        if i == num - 1:
            from_.append(f"d{num}.loss")
        backward.append(
            Op(
                f"B{i}",
                "backward",
                stage.backward_s,
                stage.backward_workspace_bytes,
                (*from_, *read, f"a{i + 1}", *optional),
                {f"d{value}.{i}": size[value] for value in part.reads if value},
            )
        )
    loss = Op(
        "loss", "loss", loss_s, loss_workspace_bytes, (f"a{num}",), {f"d{num}.loss": size[num]}
    )
    return Graph(name, (*forward, loss, *reversed(backward)), {"a0": size[0]}, static_bytes)


def _times(
    parts: Sequence[Part], sizes: _Sizes, rows: Sequence[_Measured]
) -> list[tuple[float, float]]:
    """(forward, backward) seconds of each part; parts of one kind share the median of them all."""
    pools: dict[Any, list[_Measured]] = {}
    keys = []
    for i, part in enumerate(parts):
        row = rows[i]
        shapes = [tuple(p.shape) for module in part.modules for p in module.parameters()]
        kinds = [type(module).__name__ for module in part.modules]
        read = [sizes.value_bytes[value] for value in part.reads]
        bytes_ = (row.saved_bytes, row.backward_workspace_bytes, sizes.value_bytes[i + 1])
        keys.append(repr((kinds, shapes, read, bytes_)))
        pools.setdefault(keys[-1], []).append(row)
    found = []
    for key in keys:
        pool = pools[key]
        forward = _median([t for row in pool for t in row.forward_s])
        saving = _median([t for row in pool for t in row.saving_s])
        backward = _median([t for row in pool for t in row.backward_s])
        found.append((forward, backward + max(0.0, saving - forward)))
    return found


def _median(times_s: Sequence[float]) -> float:
    return statistics.median(times_s) if times_s else 0.0


def _unique(names: Sequence[str]) -> list[str]:
    if len(set(names)) == len(names):
        return list(names)
    return [f"{i}.{name}" for i, name in enumerate(names)]

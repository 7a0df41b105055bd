"""One step of a scheduled model over eager blocks, run by run.

At every run, exactly the tensors are alive that the schedule's memory rule names. A forward that
keeps its bundle runs under autograd with its saved tensors packed. A saved tensor that shares the
storage of an input of the block is noted by place, not kept, and taken from that input again when
the backward runs, so that the input may die and be recomputed in between. All other saved tensors
are the bundle. Where the inputs stay until the backward anyway, autograd keeps what it saves as in
a plain step, without a call of Python for each tensor. A forward that keeps nothing runs under
no_grad.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks

from schedsim.errors import SchedsimError

from ..guards.watched_places import NO_PLACES, Places
from ..torch_private.module_tables import gradient_hooks
from ..torch_private.pytrees import tree_flatten, tree_map_only, tree_unflatten
from ..torch_private.storage_refs import storage_key
from .block_program import BlockProgram, BlockRun
from .parts import Part, StepInputs
from .repeated_forward import (
    AutocastState,
    Buffers,
    RandomState,
    copies,
    frozen_statistics,
    replaced_buffers,
)
from .sharded import Sharding
from .step_copies import Copies
from .transfers import Mover

ANCHOR = torch.empty((), requires_grad=True)
"""Makes the outputs of our autograd functions require a gradient; it never gets one itself."""

_START = torch.ones(())
"""The gradient that starts a block's backward: its value does not matter (see `_Outlet`)."""


class Observer(Protocol):
    """An object that is told of every run, before and after it."""

    def begin(self, number: int, run: BlockRun, step: BlockStep) -> None:
        """Called when run `number` of the schedule is about to start."""
        ...

    def end(self, number: int, run: BlockRun, step: BlockStep) -> None:
        """Called when the run is over, before anything is freed."""
        ...


@dataclass(frozen=True)
class StepLayout:
    """The parts of a model and their properties, which do not change from step to step.

    Attributes
    ----------
    parts, loss
        The model's parts, and the function that makes a scalar of its output (``None``: the output
        is the loss).
    num_extra
        Number of the last positional inputs that go to the loss instead of the model.
    needs_gradient
        For each value, whether a gradient flows to each leaf of its tree.
    state
        For each part, the buffers besides batch norms' that a forward changes.
    devices
        Devices whose random numbers are replayed.
    python
        Places outside of tensors that a forward changes: repeated runs find them as the first run
        did, and leave them unchanged.
    sharding
        Where parameters are sharded over ranks: which parameters each part gathers.
    releases_output
        Whether the model's output is dropped after the forward of the loss, if nothing keeps it.
    shared
        For each part, the parameters that a later part uses, too (`shared_parameters`).
    """

    parts: Sequence[Part]
    loss: Callable[..., Tensor] | None
    num_extra: int
    needs_gradient: Sequence[tuple[bool, ...]]
    state: Sequence[Buffers]
    devices: tuple[str, ...]
    python: Places = NO_PLACES
    sharding: Sharding | None = None
    releases_output: bool = False
    shared: Sequence[tuple[nn.Parameter, ...]] = ()


@dataclass
class _BundleState:
    """Where a bundle finds its inputs while its backward runs, and leaves their gradients.

    `given`: gradients of the block's output, which the backward takes out. `summing`: parameters
    to whose gradients the backward adds, by the engine's own sums. `held`: the tensors that
    the bundle keeps, where they may be copied to the host. `kept`: keys of the storages that it
    keeps, or will look for.
    """

    inputs: Mapping[int, list[Any]] | None = None
    given: list[Tensor | None] = field(default_factory=list)
    summing: tuple[nn.Parameter, ...] = ()
    resident: frozenset[int] = frozenset()
    gradients: dict[int, list[Tensor | None]] = field(default_factory=dict)
    held: list[weakref.ref[_HeldContent]] = field(default_factory=list)
    kept: set[int] = field(default_factory=set)


class _HeldContent:
    """A saved tensor in a place where it can be taken out and put back."""

    __slots__ = ("__weakref__", "content")

    def __init__(self, content: Any) -> None:
        self.content = content  # a tensor, a `_Place`, or None while the tensor is elsewhere

    def take_from(self, number: int, value: Any) -> None:
        """Hold the tensor itself, where it is a view of this value."""
        if isinstance(self.content, _Place) and self.content.value == number:
            self.content = self.content.of(leaves_of(value))


@dataclass(frozen=True, slots=True)
class _Place:
    """A saved tensor that is a view of an input: number of the value, its leaf, and the view."""

    value: int
    leaf: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, leaves: Sequence[Any]) -> Tensor:
        """The view of the value's leaf."""
        source: Tensor = leaves[self.leaf]
        return source.as_strided(self.size, self.stride, self.offset)


@dataclass
class _Bundle:
    """The tensors that a forward kept: the autograd graph, held by its outlet."""

    outlet: Any  # the edge where its backward starts, None where no gradient flows
    takes: tuple[int, ...]  # the leaves of the output whose gradients go in there
    cell: _BundleState


class _Gate(torch.autograd.Function):
    """Passes tensors into a block, and their gradients out of the block into a cell.

    No leaf tensor is involved, because the graph would keep it alive.
    """

    @staticmethod
    def forward(ctx: Any, cell: _BundleState, value: int, anchor: Tensor, *tensors: Tensor) -> Any:
        ctx.cell, ctx.value = cell, value
        ctx.set_materialize_grads(False)
        return tuple(tensor.detach() for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        ctx.cell.gradients[ctx.value] = [g if g is None else compact(g) for g in gradients]
        return (None, None, None, *(None for _ in gradients))


class _Outlet(torch.autograd.Function):
    """The end of a block, where the gradients of its output go in.

    It takes them from the cell, so that none is held once the block has used it. `backward` holds
    the gradients that it is called with until it is over, as a plain step does not. The gradients
    that later blocks have made for parameters of this one go in, too: so autograd adds to them in
    place, as it does in a plain step, and does not make a sum of its own first.
    """

    @staticmethod
    def forward(ctx: Any, cell: _BundleState, *outputs: Tensor) -> Tensor:
        ctx.cell = cell
        return _START.detach()

    @staticmethod
    def backward(ctx: Any, _start: Tensor) -> Any:
        given, ctx.cell.given = ctx.cell.given, []
        return (None, *given, *(_taken(p, ctx.cell.resident) for p in ctx.cell.summing))


def _taken(parameter: nn.Parameter, resident: frozenset[int]) -> Tensor | None:
    """The gradient of a parameter, which it has no longer; ``None`` for one to leave alone.

    Left alone are gradients from before the step, and those that somebody watches, as the hooks of
    other ranks may, which cannot be seen.
    """
    gradient = parameter.grad
    ranks = torch.distributed.is_available() and torch.distributed.is_initialized()
    if gradient is None or id(parameter) in resident or gradient_hooks(parameter) or ranks:
        return None
    parameter.grad = None
    return gradient


class BlockStep:
    """One step: the values, bundles and gradients that are alive, and how each op runs on them."""

    def __init__(
        self,
        layout: StepLayout,
        program: BlockProgram,
        inputs: StepInputs,
        observer: Observer | None = None,
        mover: Mover | None = None,
    ) -> None:
        self.layout, self.program, self.inputs = layout, program, inputs
        self.observer = observer
        self.copies = Copies(self, mover) if program.has_copies and mover is not None else None
        self.values: dict[int, Any] = {}
        self.gradients: dict[tuple[int, int], list[Tensor | None]] = {}
        self.bundles: dict[int, _Bundle] = {}
        self.counts: dict[str, int] = {}
        self._autocast = AutocastState.now(layout.devices)
        self._random: dict[int, RandomState] = {}
        self._buffers: dict[int, Buffers] = {}
        self._python: dict[int, list[Any]] = {}
        self._loss: _Bundle | None = None
        shared = {id(p): p for group in layout.shared for p in group}
        self.resident = frozenset(i for i, p in shared.items() if p.grad is not None)

    def forward(self) -> Tensor:
        """Run the schedule up to the loss, and return the loss."""
        runs, at = self.program.runs, self.program.loss_run
        for number in range(at):
            self._run(number, runs[number])
        if self.observer is not None:
            self.observer.begin(at, runs[at], self)
        if self.copies is not None:
            self.copies.before(runs[at])
        return self._loss_forward()

    def backward(self, gradient: Tensor) -> None:
        """Run the rest of the schedule, from `gradient` of the loss on."""
        runs, at = self.program.runs, self.program.loss_run
        if self._loss is None:
            raise SchedsimError(
                "the step has run backward already",
                hint="call the module again: what it kept is gone",
            )
        if self.layout.sharding is not None:
            self.layout.sharding.begin_backward()
        self._loss_backward(gradient)
        self._finish(at, runs[at])
        for number in range(at + 1, len(runs)):
            self._run(number, runs[number])

    def _run(self, number: int, run: BlockRun) -> None:
        if self.observer is not None:
            self.observer.begin(number, run, self)
        if self.copies is not None:
            self.copies.before(run)
        if run.idle:
            pass
        elif run.kind == "F":
            self._forward(run)
        elif run.moves is not None:
            assert self.copies is not None
            self.copies.run(run)
        else:
            self._release_read_output(run)
            self._backward(run.index)
        self._finish(number, run)

    def _release_read_output(self, run: BlockRun) -> None:
        """Drop the block's output if only this backward is left to read it.

        The bundle has what the backward needs of it.
        """
        if not run.ends_output:
            return
        if self.copies is not None:
            self.copies.drop_output(run.index)
        else:
            self.values.pop(run.index + 1, None)

    def _finish(self, number: int, run: BlockRun) -> None:
        if self.observer is not None:
            self.observer.end(number, run, self)
        self.counts[run.name] = self.counts.get(run.name, 0) + 1
        if self.layout.sharding is not None:
            runs = self.program.runs
            following = runs[number + 1] if number + 1 < len(runs) else None
            self.layout.sharding.after(run, following)
        if self.copies is not None:
            self.copies.after(number, run)
            return
        for kind, value, consumer in run.frees:
            if kind == "a":
                self.values.pop(value, None)
            elif kind == "d":
                self.gradients.pop((value, consumer), None)

    # Forward

    def _forward(self, run: BlockRun) -> None:
        part, index = self.layout.parts[run.index], run.index
        with self._as_the_first_time(run):
            if run.saves:
                out = self._saving(part, index, self._is_left_alone(run))
            else:
                values = [self.values.get(value) for value in part.reads]
                with torch.no_grad():
                    out = part.call(self.inputs, *values)
        self.values[index + 1] = detached(out)

    def _is_left_alone(self, run: BlockRun) -> bool:
        """Whether autograd may keep the inputs of the run itself, as nothing asks who keeps them.

        Parameters that are gathered for a moment, and a model's output that may be dropped early,
        are looked up by place.
        """
        layout = self.layout
        asked = layout.releases_output and run.index == len(layout.parts) - 1
        return run.stays and layout.sharding is None and not asked

    def _saving(self, part: Part, index: int, left_alone: bool = False) -> Any:
        shared = self.layout.shared
        cell = _BundleState(summing=shared[index] if shared else (), resident=self.resident)
        hooks = _NOTHING if left_alone else saved_tensors_hooks(*self._packing(part.reads, cell))
        with torch.enable_grad(), hooks:
            out = part.call(self.inputs, *self._gated(part.reads, cell))
        if self.copies is not None:
            _place_in(cell, index + 1, out)
        self.bundles[index] = _bundle(out, cell)
        return out

    def _gated(self, reads: Sequence[int], cell: _BundleState) -> list[Any]:
        """The values read; tensors that take part in gradients are behind a gate."""
        gated = []
        for value in reads:
            tree = self.values.get(value)
            needs = self.layout.needs_gradient[value]
            through = [i for i, wanted in enumerate(needs) if wanted]
            if through:
                leaves, spec = tree_flatten(tree)
                apply: Any = _Gate.apply
                passed = apply(cell, value, ANCHOR, *(leaves[i] for i in through))
                for i, tensor in zip(through, passed, strict=True):
                    leaves[i] = tensor
                tree = tree_unflatten(leaves, spec)
            gated.append(tree)
        return gated

    def _packing(self, reads: Sequence[int], cell: _BundleState) -> tuple[Any, Any]:
        places: dict[int, tuple[int, int, torch.dtype]] = {}
        for value in reads:
            for i, leaf in enumerate(leaves_of(self.values.get(value))):
                if isinstance(leaf, Tensor) and leaf.layout == torch.strided:
                    places[storage_key(leaf)] = (value, i, leaf.dtype)

        if self.copies is not None:
            return _holding(places, cell)

        def pack(tensor: Tensor) -> Any:
            # Detached: an output saved by its own node would keep that node alive, by a reference
            # cycle.
            if tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg():
                return tensor.detach()
            cell.kept.add(storage_key(tensor))
            return _placed(tensor, places) or tensor.detach()

        def unpack(packed: Any) -> Tensor:
            return packed if not isinstance(packed, _Place) else _looked_up(packed, cell)

        return pack, unpack

    def _as_the_first_time(self, run: BlockRun) -> Any:
        if run.first and run.last and not self._autocast.devices:
            return _NOTHING
        return _Conditions(self, run)

    # Loss

    def _loss_forward(self) -> Tensor:
        last = len(self.layout.parts)
        loss, cell = self.layout.loss, _BundleState()
        if loss is None:
            out = self.values[last]
            self._loss = _Bundle(None, (), cell)
        else:
            with (
                self._autocast.entered() if self._autocast.devices else _NOTHING,
                torch.enable_grad(),
                saved_tensors_hooks(*self._packing((last,), cell)),
            ):
                out = loss(*self._gated((last,), cell), *self.inputs.extra)
            self._loss = _bundle(out, cell)
            if self.layout.releases_output:
                self._release_output(cell)
        if not isinstance(out, Tensor) or out.numel() != 1:
            raise SchedsimError(
                f"the loss is a {type(out).__name__}"
                + (f" of shape {tuple(out.shape)}" if isinstance(out, Tensor) else ""),
                hint="return a scalar tensor, or give a loss that makes one of the output",
            )
        return compact(out.detach())

    def _release_output(self, cell: _BundleState) -> None:
        """Drop the model's output if neither the loss nor the last part keeps it.

        The plain step drops it, too; logits are a large part of the peak.
        """
        last = len(self.layout.parts)
        bundle = self.bundles.get(last - 1)
        kept = cell.kept | bundle.cell.kept if bundle is not None else cell.kept
        leaves = [leaf for leaf in leaves_of(self.values[last]) if isinstance(leaf, Tensor)]
        plain = all(leaf.layout == torch.strided for leaf in leaves)
        if plain and not kept & {storage_key(leaf) for leaf in leaves}:
            del self.values[last]

    def _loss_backward(self, gradient: Tensor) -> None:
        last = len(self.layout.parts)
        assert self._loss is not None
        bundle, self._loss = self._loss, None
        if self.layout.loss is None:
            self.gradients[last, last] = [gradient]
            return
        bundle.cell.given = [gradient]
        self.gradients[last, last] = self._pulled(bundle, (last,))[last]

    # Backward

    def _backward(self, index: int) -> None:
        part, bundle = self.layout.parts[index], self.bundles.pop(index)
        given = self._taken_gradient(index + 1)
        bundle.cell.given = [given[i] for i in bundle.takes]
        del given
        for value, found in self._pulled(bundle, part.reads, index + 1).items():
            self.gradients[value, index] = found

    def _taken_gradient(self, value: int) -> list[Tensor | None]:
        """For each leaf of `value`, the sum of the gradients from its consumers, which go."""
        places = sorted(place for place in self.gradients if place[0] == value)
        from_all = [self.gradients.pop(place) for place in places]
        if len(from_all) == 1:
            return from_all[0]
        sums: list[Tensor | None] = []
        for column in zip(*from_all, strict=True):
            there = [gradient for gradient in column if gradient is not None]
            sums.append(sum(there[1:], there[0]) if there else None)
        return sums

    def _pulled(
        self, bundle: _Bundle, reads: Sequence[int], made: int = -1
    ) -> dict[int, list[Tensor | None]]:
        """Run a bundle's backward; for each value read, gradients of the leaves that need one."""
        cell = bundle.cell
        if bundle.outlet is not None and any(gradient is not None for gradient in cell.given):
            there = reads if self.copies is None else (*reads, made)
            cell.inputs = {v: leaves_of(self.values.get(v)) for v in there}
            torch.autograd.backward([bundle.outlet], [_START])
            cell.inputs = None
        found: dict[int, list[Tensor | None]] = {}
        for value in reads:
            needs = self.layout.needs_gradient[value]
            row: list[Tensor | None] = [None] * len(needs)
            pulled = iter(cell.gradients.get(value, []))
            for i, wanted in enumerate(needs):
                row[i] = next(pulled, None) if wanted else None
            if value > 0:
                found[value] = row
        cell.gradients.clear()
        return found


def _looked_up(place: _Place, cell: _BundleState) -> Tensor:
    assert cell.inputs is not None
    return place.of(cell.inputs[place.value])


def _holding(
    places: Mapping[int, tuple[int, int, torch.dtype]], cell: _BundleState
) -> tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]:
    """Pack and unpack for tensors that may be copied to the host in between."""

    def pack(tensor: Tensor) -> Any:
        content: Any = tensor.detach()
        if tensor.layout == torch.strided and not (tensor.is_conj() or tensor.is_neg()):
            cell.kept.add(storage_key(tensor))
            content = _placed(tensor, places) or content
        held = _HeldContent(content)
        cell.held.append(weakref.ref(held))
        return held

    def unpack(held: Any) -> Tensor:
        content = held.content
        assert content is not None, "a bundle is read while it is in host memory"
        return _looked_up(content, cell) if isinstance(content, _Place) else content

    return pack, unpack


def _placed(tensor: Tensor, places: Mapping[int, tuple[int, int, torch.dtype]]) -> _Place | None:
    """`tensor` as a view of one of the values in `places`, by storage."""
    found = places.get(storage_key(tensor))
    if found is None or found[2] != tensor.dtype:
        return None
    view = (tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))
    return _Place(found[0], found[1], *view)


def _place_in(cell: _BundleState, value: int, out: Any) -> None:
    """Take what a bundle keeps of its part's own output from there, as the output may leave."""
    places = {
        storage_key(leaf): (value, i, leaf.dtype)
        for i, leaf in enumerate(leaves_of(out))
        if isinstance(leaf, Tensor) and leaf.layout == torch.strided
    }
    for reference in cell.held:
        held = reference()
        if held is not None and isinstance(held.content, Tensor):
            held.content = _placed(held.content, places) or held.content


def _bundle(out: Any, cell: _BundleState) -> _Bundle:
    leaves = leaves_of(out)
    takes = [i for i, t in enumerate(leaves) if isinstance(t, Tensor) and t.requires_grad]
    if not takes:
        return _Bundle(None, (), cell)
    apply: Any = _Outlet.apply
    with torch.enable_grad():
        end = apply(cell, *(leaves[i] for i in takes), *cell.summing)
    return _Bundle(get_gradient_edge(end), tuple(takes), cell)


def leaves_of(tree: Any) -> list[Any]:
    """The leaves of a tree; most trees are a single tensor."""
    return [tree] if isinstance(tree, Tensor) else tree_flatten(tree)[0]


def detached(tree: Any) -> Any:
    """The tree with its tensors detached from autograd."""
    return tree.detach() if isinstance(tree, Tensor) else tree_map_only(Tensor, Tensor.detach, tree)


def compact(tensor: Tensor) -> Tensor:
    """`tensor`, copied if it is a piece of a larger storage that it would keep alive.

    The gradient of a concatenated tensor is a view of the whole gradient, and the gradient of a
    mean over differences may share the storage of the differences.
    """
    own = tensor.numel() * tensor.element_size()
    return tensor if tensor.untyped_storage().nbytes() <= own else tensor.clone()


_NOTHING: Any = nullcontext()


class _Conditions:
    """Entered around a forward run: restores random numbers, buffers and casts of the first run."""

    def __init__(self, step: BlockStep, run: BlockRun) -> None:
        self.step, self.run = step, run

    def __enter__(self) -> None:
        step, run, layout = self.step, self.run, self.step.layout
        index = run.index
        self.contexts = [step._autocast.entered()]
        self.before: RandomState | None = None
        once = run.first and run.last
        if not once:
            self.before = RandomState.now(layout.devices)
        if run.first and not once and layout.state[index]:
            step._buffers[index] = copies(_present(layout.state[index]))
        self.python: list[Any] | None = None
        if run.first and not once and layout.python:
            step._python[index] = layout.python.take()
        if not run.first and index in step._python:
            self.python = layout.python.take()
            layout.python.put(step._python[index])
        if not run.first:
            if index in step._random:
                step._random[index].restore()
            self.contexts.append(frozen_statistics(layout.parts[index].modules))
            if index in step._buffers:
                self.contexts.append(replaced_buffers(step._buffers[index]))
        for context in self.contexts:
            context.__enter__()

    def __exit__(self, *error: Any) -> None:
        step, run = self.step, self.run
        for context in reversed(self.contexts):
            context.__exit__(*error)
        if self.python is not None:
            step.layout.python.put(self.python)
        if self.before is None:
            return
        if not run.first:
            self.before.restore()
        elif RandomState.now(step.layout.devices) != self.before:
            step._random[run.index] = self.before  # it drew numbers: repeats must draw the same
        if run.last:
            step._random.pop(run.index, None)
            step._buffers.pop(run.index, None)
            step._python.pop(run.index, None)


def _present(buffers: Buffers) -> Buffers:
    """The same places with the values that they hold now."""
    found: Buffers = []
    for module, name, _ in buffers:
        value = module._buffers[name]
        if value is not None:
            found.append((module, name, value))
    return found

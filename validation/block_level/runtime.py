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

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from schedsim.errors import SchedsimError

from ..autocasts import Autocast
from ..guards.watched_places import NO_PLACES, Places
from ..ranks.ranks import ALONE
from ..torch_private.pytrees import tree_flatten, tree_unflatten
from ..torch_private.storage_refs import storage_key
from .autograd_ends import ANCHOR, START, Gate, bundle_of, compact
from .block_program import BlockProgram, BlockRun
from .bundles import Bundle, BundleState, detached, holding, leaves_of, packing, place_in
from .first_conditions import FirstConditions, FirstStates
from .parts import Part, StepInputs
from .repeated_forward import Buffers, Source
from .sharded import Sharding
from .step_copies import Copies
from .transfers import Mover


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
        Devices, and generators of modules, whose random numbers are replayed.
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
    devices: tuple[Source, ...]
    python: Places = NO_PLACES
    sharding: Sharding | None = None
    releases_output: bool = False
    shared: Sequence[tuple[nn.Parameter, ...]] = ()


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
        self.ranks = ALONE
        self.copies = Copies(self, mover) if program.has_copies and mover is not None else None
        self.values: dict[int, Any] = {}
        self.gradients: dict[tuple[int, int], list[Tensor | None]] = {}
        self.bundles: dict[int, Bundle] = {}
        self.counts: dict[str, int] = {}
        self._first = FirstStates(Autocast.now())
        self._loss: Bundle | None = None
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
        cell = BundleState(summing=shared[index] if shared else (), resident=self.resident)
        hooks = _NOTHING if left_alone else saved_tensors_hooks(*self._packing(part.reads, cell))
        with torch.enable_grad(), hooks:
            out = part.call(self.inputs, *self._gated(part.reads, cell))
        if self.copies is not None:
            place_in(cell, index + 1, out)
        self.bundles[index] = bundle_of(out, cell)
        return out

    def _gated(self, reads: Sequence[int], cell: BundleState) -> list[Any]:
        """The values read; tensors that take part in gradients are behind a gate."""
        gated = []
        for value in reads:
            tree = self.values.get(value)
            needs = self.layout.needs_gradient[value]
            through = [i for i, wanted in enumerate(needs) if wanted]
            if through:
                leaves, spec = tree_flatten(tree)
                apply: Any = Gate.apply
                passed = apply(cell, value, ANCHOR, *(leaves[i] for i in through))
                for i, tensor in zip(through, passed, strict=True):
                    leaves[i] = tensor
                tree = tree_unflatten(leaves, spec)
            gated.append(tree)
        return gated

    def _packing(self, reads: Sequence[int], cell: BundleState) -> tuple[Any, Any]:
        places: dict[int, tuple[int, int, torch.dtype]] = {}
        for value in reads:
            for i, leaf in enumerate(leaves_of(self.values.get(value))):
                if isinstance(leaf, Tensor) and leaf.layout == torch.strided:
                    places[storage_key(leaf)] = (value, i, leaf.dtype)
        return packing(places, cell) if self.copies is None else holding(places, cell)

    def _as_the_first_time(self, run: BlockRun) -> Any:
        if run.first and run.last and not self._first.autocast.devices:
            return _NOTHING
        return FirstConditions(self.layout, self._first, run)

    # Loss

    def _loss_forward(self) -> Tensor:
        last = len(self.layout.parts)
        loss, cell = self.layout.loss, BundleState()
        if loss is None:
            out = self.values[last]
            self._loss = Bundle(None, (), cell)
        else:
            with (
                self._first.autocast.entered() if self._first.autocast.devices else _NOTHING,
                torch.enable_grad(),
                saved_tensors_hooks(*self._packing((last,), cell)),
            ):
                out = loss(*self._gated((last,), cell), *self.inputs.extra)
            self._loss = bundle_of(out, cell)
            if self.layout.releases_output:
                self._release_output(cell)
        if not isinstance(out, Tensor) or out.numel() != 1:
            raise SchedsimError(
                f"the loss is a {type(out).__name__}"
                + (f" of shape {tuple(out.shape)}" if isinstance(out, Tensor) else ""),
                hint="return a scalar tensor, or give a loss that makes one of the output",
            )
        return compact(out.detach())

    def _release_output(self, cell: BundleState) -> None:
        """Drop the model's output if neither the loss nor the last part keeps it.

        The plain step drops it, too; logits are a large part of the peak.
        """
        last = len(self.layout.parts)
        bundle = self.bundles.get(last - 1)
        kept = set(cell.kept) | (set(bundle.cell.kept) if bundle is not None else set())
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
        self, bundle: Bundle, reads: Sequence[int], made: int = -1
    ) -> dict[int, list[Tensor | None]]:
        """Run a bundle's backward; for each value read, gradients of the leaves that need one."""
        cell = bundle.cell
        if bundle.outlet is not None and any(gradient is not None for gradient in cell.given):
            there = reads if self.copies is None else (*reads, made)
            cell.inputs = {v: leaves_of(self.values.get(v)) for v in there}
            torch.autograd.backward([bundle.outlet], [START])
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


_NOTHING: Any = nullcontext()

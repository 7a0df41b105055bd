"""The plain step and the planned one from the same start, and what differs between them.

The only proof that a plan trains what the loop trains is to run both. Loss, gradients with their
strides, buffers, inputs written in place, generators and the Python state are compared; all of it
is as before afterwards.

A device may have room for the budget alone. So what the plain step saves for its backward waits
outside of its memory (`saved_elsewhere`); of the results only numbers that represent their bits are
kept, and where these differ, both steps run once more, and copies wait there too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from schedsim.errors import SchedsimError

from ..autocasts import run_backward
from ..measure.meters import Meter
from ..torch_private.dynamo_settings import compiled_alone
from ..torch_private.module_tables import buffers_of, step_hooks
from ..torch_private.parametrization_cache import own_cached_weights
from ..torch_private.pytrees import tree_leaves, tree_map_only
from ..torch_private.storage_refs import DataPlaces, unseen_writes
from .float64_step import Float64Step
from .recording import (
    Recorded,
    detached_copies,
    is_reparametrised,
    python_generators,
    restore_python_generators,
)
from .saved_elsewhere import copied_elsewhere, forbids_hooks, is_plain, on_host, saved_elsewhere
from .seen_formats import SeenFormats
from .state import StateSnapshot
from .state_change import same, shown
from .tensor_bits import digest

CHECKS = ("plan", "never")
_NOISE = 64
"""Roundings of the largest gradient beside it within which a gradient is noise.

Of a convolution's bias in front of a batch norm, a kernel that adds up in one go leaves 34.
"""
_PIECE = 1 << 16
"""Entries that are compared in float64 at a time: wide copies of all would take memory."""
_ROUNDING = {
    torch.float64: 1e-9,
    torch.float32: 1e-4,
    torch.bfloat16: 0.05,
    torch.float16: 0.02,
    torch.complex128: 1e-9,
    torch.complex64: 1e-4,
    torch.complex32: 0.02,
}


def read_check(check: Any) -> str | int:
    """`check` as it was given, where it means something.

    Raises
    ------
    SchedsimError
        It is none of ``"plan"``, ``"never"`` and a positive number of steps.
    """
    whole = isinstance(check, int) and not isinstance(check, bool) and check >= 1
    if not (check in CHECKS or whole):
        raise SchedsimError(
            f"check={check!r} is not understood",
            hint="'plan' (once for each plan), a number N (every N-th step too), or 'never'",
        )
    return check  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Difference:
    """The first difference between the planned step and the plain one.

    Attributes
    ----------
    rounding
        Whether it is within rounding, as far as numbers are concerned.
    is_error
        Whether the planned step raises what the plain one does not, as its planner may.
    refusal
        What the planner has refused it with, without the frames of the step.
    """

    what: str
    rounding: bool = False
    is_error: bool = False
    refusal: SchedsimError | None = None

    def __str__(self) -> str:
        return self.what


@dataclass(frozen=True)
class Checked:
    """How a comparison of two steps ended.

    Attributes
    ----------
    difference
        ``None`` where there is none, or nothing was compared.
    note
        A line for the report.
    """

    difference: Difference | None
    note: str


@dataclass
class _Left:
    """The results that a step leaves behind."""

    loss: Tensor
    gradients: list[tuple[str, Tensor | None, tuple[int, ...]]]
    tensors: list[tuple[str, Tensor]]
    generators: list[Tensor]
    python: Any
    state: dict[str, Any]

    def by_name(self) -> dict[str, Tensor]:
        """The loss, gradients and buffers, by the names in a `Difference`."""
        named = {name: t for name, t, _ in self.gradients if t is not None}
        return {"the loss": self.loss, **named, **dict(self.tensors)}


Kept = Callable[[Tensor], Tensor]
"""Makes of a tensor what is kept of it to be compared."""


class NotCompared(Exception):
    """There is no room for a comparison."""


@dataclass(frozen=True)
class Both:
    """Runs steps from the present state, which stays.

    Parameters
    ----------
    model, loss
        Whose parameters, buffers and Python state count.
    recorded
        Of a forward, with what it writes in place.
    outputs, to_loss
        Of what a step returns: the tensors that are compared too, and the loss. By default a step
        returns its loss.
    takes_more
        Called before the plain step runs with all that it saves in the device's memory, with the
        reason; it may raise `NotCompared`.
    """

    model: nn.Module
    loss: Any
    recorded: Recorded | None
    outputs: Callable[[Any], Sequence[Tensor]] = lambda found: ()
    to_loss: Callable[[Any], Tensor] = lambda found: found
    takes_more: Callable[[str], None] = lambda why: None

    def difference(
        self,
        plain: Callable[..., Any],
        planned: Callable[..., Any],
        inputs: tuple[Any, ...],
        keywords: Mapping[str, Any],
        *,
        rounded: bool = False,
        exact: Float64Step | None = None,
    ) -> Difference | None:
        """The first difference between the steps `planned` and `plain`.

        Parameters
        ----------
        rounded
            The plan is known to round otherwise, and to draw other numbers.
        exact
            The plain step in float64: a result that is off by more than rounding is no difference
            where it is as exact as the plain step's.

        Raises
        ------
        NotCompared
            The plain step can only run with its own memory, for which there is no room.

        Notes
        -----
        Where a step that may be `rounded` computes in half precision, as under autocast, its
        results have the digits of that format, also those in float32.
        """

        def of_plain(kept: Kept) -> _Left:
            return self._run_plain(plain, inputs, keywords, kept, copied)

        def of_planned(kept: Kept) -> _Left:
            try:
                return self.run(planned, inputs, keywords, kept, copied)
            except Exception as error:  # of a kernel, of the runtime: no step to train by
                raise _PlannedFails(error) from None

        with copied_elsewhere() as copied:
            try:
                if not rounded:
                    expected = of_plain(_digest)
                    if _difference(expected, of_planned(_digest), False) is None:
                        return None
                # torch cannot trace the backward of a branch once its forward has run in a mode.
                looks = rounded and not (self.recorded is not None and self.recorded.branches)
                with SeenFormats() if looks else nullcontext() as seen:
                    expected = of_plain(copied)
                if rounded and self.draws(expected):
                    return None  # it draws other numbers by design, which nothing can be told by
                found = of_planned(copied)
            except _PlannedFails as error:
                return Difference(str(error), is_error=True, refusal=error.refusal)
            coarsest = seen.coarsest if seen is not None else None
            difference = _difference(expected, found, rounded, exact, coarsest)
            if difference is None or not difference.rounding:
                return difference
            # Some kernels of CUDA give other bits every time: then nothing can be told by bits.
            again = _difference(expected, of_plain(copied), rounded)
            return None if again is not None else difference

    def run(
        self,
        step: Callable[..., Any],
        inputs: tuple[Any, ...],
        keywords: Mapping[str, Any],
        kept: Kept = on_host,
        aside: Kept | None = None,
        *,
        saves_elsewhere: bool = False,
    ) -> _Left:
        """The results of a forward and backward of `step`.

        Parameters
        ----------
        aside
            Puts a copy outside of the device's memory, of what the step may write. By default
            copies are in that memory.
        saves_elsewhere
            Whether what the step saves for its backward waits outside of it too.
        """
        given = _Given((inputs, dict(keywords)), aside)
        state = self.recorded.state() if self.recorded is not None else None
        python = python_generators()
        roots = [m for m in (self.model, self.loss) if isinstance(m, nn.Module)]
        parameters = {f"{n}": p for root in roots for n, p in root.named_parameters()}
        stay = [*parameters.values(), *(b for root in roots for b in root.buffers())]
        # Inputs are there throughout, whether the backward reads them or not.
        stay += [leaf for leaf in given.leaves if is_plain(leaf.detach())]
        with self._kept(roots, aside):
            try:
                with saved_elsewhere(stay) if saves_elsewhere else nullcontext():
                    found = step(*given.inputs, **given.keywords)
                    outputs = [(f"output {i}", kept(t)) for i, t in enumerate(self.outputs(found))]
                    loss = self.to_loss(found)
                    del found
                    run_backward(loss)
                return self._left(loss, _Leaves(kept, parameters, given.leaves), outputs, state)
            finally:
                given.restore()
                if state is not None:
                    state.restore()
                restore_python_generators(python)

    def _run_plain(
        self,
        step: Callable[..., Any],
        inputs: tuple[Any, ...],
        keywords: Mapping[str, Any],
        kept: Kept = on_host,
        aside: Kept | None = None,
    ) -> _Left:
        """The results of the plain step, which saves outside of the device's memory if it can."""
        try:
            return self.run(step, inputs, keywords, kept, aside, saves_elsewhere=True)
        except RuntimeError as error:
            if not forbids_hooks(error):
                raise
        self.takes_more("it bears no hooks of saved tensors, by which they could wait elsewhere")
        return self.run(step, inputs, keywords, kept, aside)

    def results(
        self, step: Callable[..., Any], inputs: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> dict[str, Tensor]:
        """The loss, gradients and buffers of a plain `step`, by the names in a `Difference`."""
        return self._run_plain(step, inputs, keywords).by_name()

    def compiled_results(
        self, step: Callable[..., Any], inputs: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> dict[str, Tensor]:
        """Those of a plain `step` by torch.compile, which bears no hooks of saved tensors."""
        return self.run(compiled_alone(step, "inductor", False), inputs, keywords).by_name()

    def draws(self, left: _Left) -> bool:
        """Whether the step with these results drew numbers: it has put the generators back."""
        return not all(map(torch.equal, _generators(self.model), left.generators))

    def peak_bytes(
        self,
        step: Callable[..., Tensor],
        inputs: tuple[Any, ...],
        keywords: Mapping[str, Any],
        meter: Meter,
    ) -> int:
        """The most bytes of a forward and backward of `step`, beyond those alive before it."""
        inputs, keywords = detached_copies((inputs, dict(keywords)))
        state = self.recorded.state() if self.recorded is not None else None
        python = python_generators()
        roots = [m for m in (self.model, self.loss) if isinstance(m, nn.Module)]

        def forward_and_backward() -> None:
            run_backward(self.to_loss(step(*inputs, **keywords)))

        with self._kept(roots, None):
            try:
                [reading] = meter.read(forward_and_backward)
            finally:
                if state is not None:
                    state.restore()
                restore_python_generators(python)
        return reading.peak_bytes

    def _left(
        self,
        loss: Tensor,
        leaves: _Leaves,
        outputs: Sequence[tuple[str, Tensor]],
        state: StateSnapshot | None,
    ) -> _Left:
        kept, recorded = leaves.kept, self.recorded
        gradients = leaves.gradients(recorded.foreign if recorded is not None else ())
        roots = [m for m in (self.model, self.loss) if isinstance(m, nn.Module)]
        tensors = [(f"buffer {n}", kept(b)) for root in roots for n, b in root.named_buffers()]
        tensors += [(f"input {i}", kept(leaf)) for i, leaf in enumerate(leaves.inputs)]
        if recorded is not None:
            tensors += [("a tensor", kept(t)) for t in (*recorded.written, *recorded.moved)]
        if state is not None:
            tensors += state.torch_generators()
        tensors += outputs
        left: dict[str, Any] = {}
        for change in state.changes() if state is not None else []:
            left[change.path] = _taken(change.now)
            if is_reparametrised(change):  # a later forward does not look at it
                left[change.path] = (left[change.path][0], False)
        return _Left(
            on_host(loss), gradients, tensors, _generators(self.model), python_generators(), left
        )

    @contextmanager
    def _kept(self, roots: list[nn.Module], aside: Kept | None) -> Iterator[None]:
        """Gradients, buffers, generators and what else is written in place, as they are now."""
        parameters: list[Tensor] = [p for root in roots for p in root.parameters()]
        parameters += [t for _, t in self.recorded.foreign] if self.recorded is not None else ()
        own = [(p, p.grad) for p in parameters]
        tables = [
            (module, name, buffer, _copy(buffer, aside))
            for root in roots
            for module in root.modules()
            for name, buffer in buffers_of(module).items()
            if buffer is not None
        ]
        written = self.recorded.written if self.recorded is not None else ()
        moved = self.recorded.moved if self.recorded is not None else ()
        buffers = tuple(buffer for _, _, buffer, _ in tables)
        held = DataPlaces([*parameters, *moved, *buffers, *written])
        contents = [(tensor, _copy(tensor, aside)) for tensor in written]
        devices = sorted({p.device for p in parameters if p.device.type == "cuda"}, key=str)
        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices))
            stack.enter_context(without_step_hooks(parameters))
            stack.enter_context(torch.enable_grad())
            stack.enter_context(unseen_writes(buffers))
            stack.enter_context(own_cached_weights())
            try:
                for parameter in parameters:
                    parameter.grad = None
                yield
            finally:
                held.restore()
                for parameter, gradient in own:
                    parameter.grad = gradient
                with torch.no_grad():
                    for module, name, buffer, content in tables:
                        buffer.copy_(content)
                        buffers_of(module)[name] = buffer
                    for tensor, content in contents:
                        tensor.copy_(content)


def _copy(tensor: Tensor, aside: Kept | None) -> Tensor:
    """A copy of `tensor`, by `aside` where its memory holds its numbers as they are."""
    tensor = tensor.detach()
    return tensor.clone() if aside is None or not is_plain(tensor) else aside(tensor)


class _Given:
    """What a step is given: its tensors are lent to it, or copied where no copy can be put aside.

    Attributes
    ----------
    inputs, keywords
        With leaves in the place of tensors.
    leaves
        These, in their order.
    """

    def __init__(self, given: tuple[tuple[Any, ...], dict[str, Any]], aside: Kept | None) -> None:
        self._lent: dict[int, tuple[Tensor, int, Tensor]] = {}
        self.inputs, self.keywords = (
            detached_copies(given) if aside is None else self._lend(given, aside)
        )
        self.leaves = [
            t for t in tree_leaves((self.inputs, self.keywords)) if isinstance(t, Tensor)
        ]

    def _lend(self, given: Any, aside: Kept) -> Any:
        copied: dict[int, Tensor] = {}

        def lent(tensor: Tensor) -> Tensor:
            if id(tensor) not in copied:
                if not is_plain(tensor.detach()):
                    copied[id(tensor)] = detached_copies(tensor)
                else:
                    # Code that saved it need not know what is written here, and undone.
                    leaf = tensor.data.requires_grad_(tensor.requires_grad)
                    self._lent[id(tensor)] = leaf, leaf._version, aside(tensor)
                    copied[id(tensor)] = leaf
            return copied[id(tensor)]

        return tree_map_only(Tensor, lent, given)

    def restore(self) -> None:
        """Undo what was written into tensors that were lent."""
        with torch.no_grad():
            for leaf, version, content in self._lent.values():
                if leaf._version != version:
                    leaf.copy_(content)


class _Leaves:
    """The tensors that a step gives gradients, and what is kept of these."""

    def __init__(
        self, kept: Kept, parameters: Mapping[str, nn.Parameter], inputs: Sequence[Tensor]
    ) -> None:
        self.kept, self._parameters, self.inputs = kept, parameters, inputs

    def gradients(
        self, foreign: Sequence[tuple[str, Tensor]]
    ) -> list[tuple[str, Tensor | None, tuple[int, ...]]]:
        """Each gradient by name, and its strides; those of `foreign` tensors among them."""
        named: list[tuple[str, Tensor]] = [*self._parameters.items(), *foreign]
        named += [(f"input {i}", it) for i, it in enumerate(self.inputs) if it.requires_grad]
        found: list[tuple[str, Tensor | None, tuple[int, ...]]] = []
        for name, tensor in named:
            gradient = tensor.grad
            what = f"the gradient of {name}"
            if gradient is None:
                found.append((what, None, ()))
            else:
                found.append((what, self.kept(gradient), _strides(gradient)))
        return found


class _PlannedFails(Exception):
    """The planned step raises this."""

    def __init__(self, error: Exception) -> None:
        text = " ".join(str(error).split())[:200]
        super().__init__(f"it fails: {type(error).__name__}: {text}")
        self.refusal: SchedsimError | None = None
        if isinstance(error, SchedsimError):
            self.refusal = error.with_traceback(None)


def _digest(tensor: Tensor) -> Tensor:
    """Numbers that represent the bits of `tensor`, or a copy of it where it has no plain memory."""
    return digest(tensor.detach()) if is_plain(tensor.detach()) else on_host(tensor)


@contextmanager
def without_step_hooks(parameters: Sequence[Tensor]) -> Iterator[None]:
    """Without hooks that run when a gradient is there: an optimizer's step may be among them."""
    tables = [step_hooks(p) for p in parameters]
    had = [(table, dict(table)) for table in tables if table]
    try:
        for table, _ in had:
            table.clear()
        yield
    finally:
        for table, content in had:
            table.update(content)


def _strides(tensor: Tensor) -> tuple[int, ...]:
    if tensor.layout is not torch.strided:
        return ()
    return tuple(s for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n != 1)


def _taken(value: Any) -> Any:
    return (on_host(value), value.requires_grad) if isinstance(value, Tensor) else value


def _generators(model: nn.Module) -> list[Tensor]:
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    states = [torch.cuda.get_rng_state(device) for device in sorted(devices, key=str)]
    return [torch.get_rng_state(), *states]


def _difference(
    expected: _Left,
    found: _Left,
    rounded: bool,
    exact: Float64Step | None = None,
    coarsest: torch.dtype | None = None,
) -> Difference | None:
    worst: Difference | None = None
    pairs = [("the loss", expected.loss, found.loss)]
    for (name, a, strides), (_, b, others) in zip(expected.gradients, found.gradients, strict=True):
        if (a is None) != (b is None):
            return Difference(f"{name} is {'missing' if b is None else 'there'}")
        if a is None or b is None:
            continue
        if strides != others and not rounded:
            worst = worst or Difference(f"{name} has strides {others} instead of {strides}", True)
        pairs.append((name, a, b))
    drew = not all(map(torch.equal, expected.generators, found.generators))
    mine, its = dict(expected.tensors), dict(found.tensors)
    if mine.keys() != its.keys():
        return Difference("the model has other buffers or outputs afterwards")
    pairs += [(name, mine[name], its[name]) for name in mine]
    for name, a, b in pairs:
        if a.shape != b.shape or a.dtype != b.dtype:
            return Difference(f"{name} is {shown(b)} of {b.dtype} instead of {shown(a)}")
        if _equal(a, b):
            continue
        off = _relative(a, b)
        tolerance = _ROUNDING.get(a.dtype, 0.0)
        near = off <= tolerance or _is_noise(name, a, b, expected.gradients)
        if not near and exact is not None:
            near = exact.accepts(name, a, b, tolerance, coarsest)
        if not near and coarsest is not None and (exact is None or not exact.knows(name)):
            near = off <= max(tolerance, _ROUNDING[coarsest])
        if not near:
            return Difference(f"{name} is off by {off:.1e} of its largest entry")
        if not rounded:
            worst = worst or Difference(f"{name} is off by {off:.1e} of its largest entry", True)
    if drew and not rounded:
        return Difference("torch's generator stands elsewhere afterwards")
    if not _same_python(expected.python, found.python):
        return Difference("Python's or NumPy's generator stands elsewhere afterwards")
    return _state_difference(expected.state, found.state) or worst


def _is_noise(name: str, one: Tensor, two: Tensor, gradients: Sequence[Any]) -> bool:
    """Whether a gradient is zero but for rounding, so that it has no digits to agree in.

    As of the bias of the keys of attention, which a softmax takes out again: what is left of sums
    that cancel is measured by the gradients of the same module's other parameters.
    """
    if one.dtype not in (torch.float32, torch.float64) or one.layout is not torch.strided:
        return False
    module = name.rpartition(".")[0]
    if not module:  # not a gradient of a module's parameter
        return False
    beside = [
        float(t.abs().max())
        for other, t, _ in gradients
        if t is not None and other != name and other.rpartition(".")[0] == module
        if t.dtype == one.dtype and t.layout is torch.strided and t.numel()
    ]
    most = _NOISE * torch.finfo(one.dtype).eps * max(beside, default=0.0)
    return all(float(t.abs().max()) <= most for t in (one, two))


def _same_python(one: Any, two: Any) -> bool:
    import numpy as np

    same_numpy = all(np.array_equal(a, b) for a, b in zip(one[1], two[1], strict=True))
    return bool(one[0] == two[0] and same_numpy)


def _state_difference(expected: dict[str, Any], found: dict[str, Any]) -> Difference | None:
    for path in {**expected, **found}:
        if path not in found:
            return Difference(f"{path} is not changed, as the plain step does")
        if path not in expected:
            return Difference(f"{path} is changed to {_short(found[path])}")
        mine, its = expected[path], found[path]
        both = isinstance(mine, tuple) and isinstance(its, tuple)
        if both and len(mine) == len(its) == 2 and isinstance(mine[0], Tensor):
            if mine[1] != its[1]:
                return Difference(
                    f"{path} is a tensor {'inside' if mine[1] else 'outside'} of autograd in the "
                    "plain step alone"
                )
            if isinstance(its[0], Tensor) and _equal(mine[0], its[0]):
                continue
        elif same(mine, its) or (type(mine) is type(its) and not _is_plain(mine)):
            continue
        return Difference(f"{path} is {_short(its)} instead of {_short(mine)}")
    return None


def _is_plain(value: Any) -> bool:
    return isinstance(value, int | float | complex | str | bytes | bool | type(None))


def _short(value: Any) -> str:
    return shown(value[0]) if isinstance(value, tuple) and value else shown(value)


def _equal(one: Tensor, two: Tensor) -> bool:
    if one.layout is not torch.strided or two.layout is not torch.strided:
        return one.layout == two.layout and bool(torch.equal(one.to_dense(), two.to_dense()))
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    if torch.equal(one, two):
        return True
    if not (one.is_floating_point() or one.is_complex()):
        return False
    return bool(torch.equal(one.isnan(), two.isnan())) and torch.equal(
        one.nan_to_num(), two.nan_to_num()
    )


def _relative(one: Tensor, two: Tensor) -> float:
    """Largest difference, as a share of the largest entry."""
    if one.layout is not torch.strided:
        one, two = one.to_dense(), two.to_dense()
    wide = torch.complex128 if one.is_complex() else torch.float64
    largest, off, num = 0.0, 0.0, 0
    one, two = one.reshape(-1), two.reshape(-1)
    for at in range(0, one.numel(), _PIECE):
        a, b = one[at : at + _PIECE], two[at : at + _PIECE]
        there = a.isfinite()
        if not torch.equal(there, b.isfinite()):
            return float("inf")
        a, b = a.to(wide)[there], b.to(wide)[there]
        if a.numel():
            num += a.numel()
            largest = max(largest, float(a.abs().max()), float(b.abs().max()))
            off = max(off, float((a - b).abs().max()))
    if not num:
        return float("inf")
    return off / largest if largest else 0.0

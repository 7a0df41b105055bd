"""A model that runs a schedule: an ordinary module whose loss has the schedule for its backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from schedsim import Schedule, simulate
from schedsim.errors import SchedsimError

from ..autocasts import Autocast
from ..capture.program import same_strides
from ..capture.skeleton import run_step
from ..first_order import first_order
from ..guards.asking import Expect, OtherAnswer
from ..ranks.wrappers import bucket_bytes
from ..torch_private.storage_refs import version_of
from .emit import Halves, emit
from .random_replay import RandomReplay

if TYPE_CHECKING:
    from ..capture.captured import CapturedGraph

Hook = Callable[[int], None]


class ScheduledOps(nn.Module):
    """A module that returns the loss of a captured model and runs a schedule to get it.

    The original model is its submodule ``model``, with its parameters and buffers. In a mode other
    than the captured one (``eval()`` after a capture in training mode, or without gradients) the
    plain model runs, without the schedule.

    Attributes
    ----------
    schedule : Schedule
    run_counts : dict of str to int
        Op -> number of runs in the last step.
    watched : bool
        Whether each step checks that the Python state which the graph assumes is unchanged.
    sums : dict of torch.nn.Parameter to torch.Tensor
        For the parameters of `summed`, the tensors to which a step adds their gradients.
    """

    def __init__(self, captured: CapturedGraph, schedule: Schedule) -> None:
        super().__init__()
        simulate(captured.graph, schedule)  # raises where the schedule is not legal
        self.model = captured.model
        self.schedule = schedule
        self._captured = captured
        self._runs = [int(run) for run in schedule.bind(captured.graph)]
        program, runs, self._joined = captured.program, self._runs, {}
        if captured.join is not None:
            joined = captured.join(captured.graph, self._runs)
            program, runs, self._joined = joined.program, joined.runs, joined.parts
        self._program, self._joined_runs = program, runs
        self._halves = emit(program, runs)
        self._in_pieces: dict[int, Halves] = {}  # bytes of a piece at least -> the code
        self._is_compiled = False
        self._observed: Halves | None = None
        self._on_cuda = captured.backend == "cuda"
        self._hook: Hook | None = None
        self._counts = [0] * (captured.graph.num_ops + len(self._joined))
        self._slots = _Slots(captured, self._halves.resident, self._sum_of)
        calls = captured.program.calls
        self._may_end = any(isinstance(c.target, Expect) for c in calls)
        self._may_end = self._may_end and any(c.random for c in calls)
        self.watched = True
        self.sums: dict[nn.Parameter, torch.Tensor] = {}
        self._modes = list(captured.model.modules())
        if isinstance(captured.loss, nn.Module):
            self.loss_function = captured.loss

    def forward(self, *inputs: Any, **kwargs: Any) -> torch.Tensor:
        """The loss of the model on `inputs`, which must have the captured form."""
        captured = self._captured
        modes = tuple(module.training for module in self._modes)
        if modes != captured.training or not torch.is_grad_enabled():
            extra = captured.call_plan.num_extra
            return run_step(self.model, captured.loss, extra, inputs, kwargs)
        if self.watched and captured.guards is not None:
            change = captured.guards.change()
            if change is not None:
                raise SchedsimError(
                    f"the model is not as captured: {change}",
                    hint="what Python holds is part of the graph: capture again",
                )
        tensors = captured.call_plan.tensors(inputs, kwargs)
        self._slots.check(tensors)
        self._check_autocast()
        resident, differentiable = self._slots.gather(tensors)
        for i in range(len(self._counts)):
            self._counts[i] = 0
        return _Step(self, resident).loss(differentiable)

    @property
    def run_counts(self) -> dict[str, int]:
        """Op -> number of runs in the last step; complete after its backward."""
        names = self._captured.graph.op_names
        counts = list(self._counts)
        for joined, parts in self._joined.items():
            for op in parts:
                counts[op] += counts[joined]
        return dict(zip(names, counts, strict=False))

    @property
    def summed(self) -> list[nn.Parameter]:
        """The parameters whose gradients a step adds to `sums`, in place of handing them over."""
        program, fetch = self._captured.program, self._slots.fetch
        found: list[Any] = [fetch[program.parameters[name]]() for name in program.sums]
        return found

    def _sum_of(self, parameter: Any) -> torch.Tensor:
        return self.sums[parameter]

    @property
    def replay_bytes(self) -> int:
        """Most bytes of generator states kept in host memory for repeated random ops.

        The graph does not count them: on the CPU they are, at worst, added to its peak.
        """
        state = torch.cuda.get_rng_state() if self._on_cuda else torch.get_rng_state()
        return self._halves.most_states * state.numel()

    @property
    def source(self) -> str:
        """The Python source of both halves, which is what runs."""
        return f"{self._halves.forward.source}\n{self._halves.backward.source}"

    def observe(self, hook: Hook | None) -> None:
        """Call ``hook(run)`` before each run of the schedule; ``None`` ends that."""
        self._hook = hook
        if hook is not None and self._observed is None:
            self._observed = emit(self._captured.program, self._runs, observed=True)

    def _code(self) -> Halves:
        if self._hook is not None and self._observed is not None:
            return self._observed
        piece_bytes = bucket_bytes()
        whole = self._is_compiled or self._captured.program.sums
        if piece_bytes is None or whole:
            return self._halves
        if piece_bytes not in self._in_pieces:
            self._in_pieces[piece_bytes] = emit(
                self._program, self._joined_runs, piece_bytes=piece_bytes
            )
        return self._in_pieces[piece_bytes]

    def _check_autocast(self) -> None:
        traced, now = self._captured.autocast, Autocast.now()
        if now != traced:
            raise SchedsimError(
                f"the step runs {now}, and was captured {traced}",
                hint="its casts are part of the graph: capture and run in the same autocast",
            )


class _Slots:
    """The places where the resident values of a program are found at run time."""

    def __init__(
        self,
        captured: CapturedGraph,
        resident: tuple[int, ...],
        sum_of: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        program = captured.program
        self.program = program
        self.resident = resident
        owners = {}
        for path, module in captured.model.named_modules(remove_duplicate=False):
            owners[path] = module
        loss = captured.loss if isinstance(captured.loss, nn.Module) else None
        for path, module in loss.named_modules(remove_duplicate=False) if loss else ():
            owners[f"loss_function.{path}" if path else "loss_function"] = module
        self.fetch: dict[int, Callable[[], torch.Tensor]] = {}
        for name, value in [*program.parameters.items(), *program.buffers.items()]:
            owner, _, attribute = name.rpartition(".")
            self.fetch[value] = _getter(owners[owner], attribute)
        for name, value in program.sums.items():
            self.fetch[value] = _sum_getter(sum_of, self.fetch[program.parameters[name]])
        self.names = {value: name for name, value in program.parameters.items()}
        self.positions = {value: position for position, value in program.inputs.items()}
        self.guarded = [i for i, v in enumerate(resident) if v in self.names or v in self.positions]
        self.trained = [program.parameters[name] for name in program.gradients]
        self.input_grads = [program.inputs[position] for position in program.input_gradients]
        self.summed = [program.parameters[name] for name in program.sums]

    def check(self, tensors: list[torch.Tensor]) -> None:
        """Raise where an input differs from the captured one in shape, type, device or strides."""
        for position, value in self.program.inputs.items():
            meant, given = self.program.values[value], tensors[position]
            if tuple(given.shape) != meant.shape:
                wrong = f"shape {tuple(given.shape)} instead of {meant.shape}"
            elif given.dtype != meant.dtype:
                wrong = f"type {given.dtype} instead of {meant.dtype}"
            elif given.device.type != meant.device.type:
                wrong = f"on {given.device} instead of {meant.device}"
            elif not same_strides(meant.shape, given.stride(), meant.stride):
                wrong = f"strides {given.stride()} instead of {meant.stride}"
            else:
                continue
            raise SchedsimError(
                f"input {position} is not as captured: {wrong}",
                hint="a plan holds for one shape: capture and plan again for another",
            )

    def versions(self, resident: list[torch.Tensor]) -> list[int]:
        """Versions of parameters and inputs, which must not change before the backward pass.

        Buffers may change: ops that read a buffer which the step updates are not recomputed.
        """
        return [version_of(resident[i]) for i in self.guarded]

    def check_versions(self, resident: list[torch.Tensor], versions: list[int]) -> None:
        """Raise where one of them has been changed in place since `versions` were taken."""
        for i, version in zip(self.guarded, versions, strict=True):
            if version_of(resident[i]) != version:
                value = self.resident[i]
                what = self.names.get(value, f"input {self.positions.get(value)}")
                raise SchedsimError(
                    f"{what} was changed in place between forward and backward, which reads it",
                    hint="call backward before the optimizer's step",
                )

    def gather(self, tensors: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The resident tensors in order, and those among them that get a gradient; summed last."""
        found: dict[int, torch.Tensor] = {}
        for value in self.resident:
            if value in self.positions:
                found[value] = tensors[self.positions[value]]
            elif value in self.fetch:
                found[value] = self.fetch[value]()
            else:
                found[value] = self.program.constants[value]
        for value in [*self.trained, *self.summed]:
            if not found[value].requires_grad:
                raise SchedsimError(
                    f"parameter {self.names[value]!r} needs no gradient now, but did when captured",
                    hint="capture again after freezing",
                )
        leaves = [*self.trained, *self.input_grads, *self.summed]
        differentiable = [found[value] for value in leaves]
        return list(found.values()), differentiable


def _getter(owner: nn.Module, attribute: str) -> Callable[[], torch.Tensor]:
    return lambda: getattr(owner, attribute)


def _sum_getter(
    sum_of: Callable[[torch.Tensor], torch.Tensor], fetch: Callable[[], torch.Tensor]
) -> Callable[[], torch.Tensor]:
    return lambda: sum_of(fetch())


class _Step:
    """One step between the end of its forward and the end of its backward.

    Its backward is one node of the autograd graph for each delivery of gradients: the engine passes
    what one node returns on, to whom it is for, before it asks the next.
    """

    def __init__(self, module: ScheduledOps, resident: list[torch.Tensor]) -> None:
        self.module = module
        self.code = module._code()
        self.hook = module._hook
        self.resident: list[torch.Tensor] | None = resident
        self.carried: list[torch.Tensor] | None = None
        self.versions: list[int] = []
        self.random = RandomReplay(len(self.code.repeated_random), module._captured.backend)
        self._pieces: Iterator[list[Any]] | None = None
        self._left = len(self.code.deliveries)

    def loss(self, leaves: list[torch.Tensor]) -> torch.Tensor:
        """The loss, with nodes behind it that give `leaves` their gradients."""
        pieces = self.code.deliveries
        if not pieces:
            loss: torch.Tensor = _FirstPiece.apply(self, *leaves)  # type: ignore[no-untyped-call]
            return loss
        inputs = leaves[len(self.module._slots.trained) :]
        later: list[torch.Tensor] = []
        for number in reversed(range(len(pieces))):
            mine = [leaves[position] for position in pieces[number].gradients]
            if number == len(pieces) - 1:
                mine += inputs
            node = _LaterPiece if number else _FirstPiece
            later = [node.apply(self, *mine, *later)]  # type: ignore[no-untyped-call]
        return later[0]

    def forward(self) -> torch.Tensor:
        module = self.module
        state = self.random.state() if module._may_end else None
        assert self.resident is not None
        with Autocast().entered():
            try:
                (loss,), self.carried = self.code.forward.function(
                    self.resident, module._counts, self.random, self.hook
                )
            except OtherAnswer:
                # So far only numbers have been taken: buffers are written after the last answer.
                if state is not None:
                    self.random.put(state)
                raise
        self.versions = module._slots.versions(self.resident)
        found: torch.Tensor = loss
        return found

    def begin_backward(self, gradient: torch.Tensor) -> list[Any]:
        """The gradients of the first piece."""
        module = self.module
        if self.carried is None or self.resident is None:
            raise SchedsimError(
                "the backward of a schedule runs once: what it needs is freed as it goes",
                hint="call the module again, and do not pass retain_graph",
            )
        module._slots.check_versions(self.resident, self.versions)
        carried, self.carried = self.carried, None
        resident, self.resident = self.resident, None
        module._captured.backward.run_here(module._captured.graph.name)
        with Autocast().entered():
            found: Any = self.code.backward.function(
                resident, carried, [gradient], module._counts, self.random, self.hook
            )
        if not self.code.deliveries:
            return [*found, *[None] * len(module._slots.summed)]
        self._pieces = found
        return self.next_piece()

    def next_piece(self) -> list[Any]:
        """The gradients of the next piece, which nothing else holds; ``None`` for the one after."""
        pieces = self._pieces
        assert pieces is not None
        with Autocast().entered():
            given = next(pieces)
        found = list(given)
        given.clear()
        self._left -= 1
        if self._left:
            return [*found, None]
        self._pieces = None
        return found


class _FirstPiece(torch.autograd.Function):
    """The forward of a step, and the first piece of its backward, if not all of it."""

    @staticmethod
    def forward(ctx: Any, step: _Step, *_leaves: torch.Tensor) -> Any:
        ctx.step = step
        return step.forward()

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return (None, *ctx.step.begin_backward(gradient))


class _LaterPiece(torch.autograd.Function):
    """Another piece of the backward; the piece before it has its output, which is empty."""

    @staticmethod
    def forward(ctx: Any, step: _Step, *leaves: torch.Tensor) -> Any:
        ctx.step = step
        return leaves[0].new_empty(0)

    @staticmethod
    @first_order
    def backward(ctx: Any, _gradient: torch.Tensor) -> Any:
        return (None, *ctx.step.next_piece())

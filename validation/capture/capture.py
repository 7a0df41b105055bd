"""From a model to the graph of its training step, without allocating it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from schedsim.errors import SchedsimError, UnsupportedError

from ..autocasts import Autocast
from ..guards.recording import Recorded, record
from ..measure.meters import no_collection
from ..torch_private.fake_tensors import fake_mode, is_fake
from ..torch_private.pytrees import tree_leaves
from . import attention
from .attention_backends import KERNELS
from .captured import CapturedGraph
from .fronts import trace, trace_once
from .optimizer_state import optimizer_bytes
from .program import Program
from .program_builder import build_program
from .skeleton import (
    Loss,
    count_extra_inputs,
    make_skeleton,
    refuse_foreign,
    refuse_unshaped,
    refuse_unusual,
    run_step,
)
from .to_graph import to_graph


def capture(
    model: nn.Module,
    inputs: tuple[Any, ...],
    loss: Loss | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    kernels: str = "native",
    optimizer: str | int = "none",
    name: str | None = None,
    recorded: Recorded | None = None,
) -> CapturedGraph:
    """The graph of one training step of `model`: forward, loss and backward, op by op.

    Meanwhile tensors have sizes but no memory: a model on the meta device is captured directly, a
    real model is neither copied nor changed. Autocast counts if the call stands inside of it. A
    model that checkpoints by itself is captured with its own recomputation: switch that off, so
    that a plan can decide.

    Parameters
    ----------
    model
        The model, in the mode (train or eval) in which the step will run.
    inputs
        Positional inputs, real, fake or on the meta device. Those that the loss requires besides
        the output come last: ``(x, target)`` for ``loss=cross_entropy``.
    loss
        Function of the model's output and of the last inputs that returns a scalar; ``None`` for a
        model that returns its loss.
    kwargs
        Keyword inputs of the model.
    kernels
        ``"native"`` for the kernels of this machine. ``"cuda-sm90"`` counts attention as CUDA's
        kernels of that compute capability store it, on a machine without CUDA; ``"cuda"`` is
        ``"cuda-sm80"``.
    optimizer
        Optimizer whose state is also resident: ``"none"``, ``"sgd"``, ``"sgd-momentum"``,
        ``"adam"``, ``"adamw"``, or a number of bytes.
    name
        Name of the graph; the model's class by default.
    recorded
        What a forward of the step was seen to do besides computing; without it, a forward is run
        if model and inputs have memory.

    Returns
    -------
    CapturedGraph
        Static bytes are parameters, buffers and the optimizer's state; gradients are results of
        the ops that make them, and inputs live throughout, as the caller holds them. Sums of
        gradients overwrite a part, as autograd's do; all else is out of place. Times are zero until
        `CapturedGraph.with_costs`.

    Raises
    ------
    UnsupportedError
        The model cannot be traced as one graph; the message names the line that prevents it, and
        the hint how to plan by blocks.
    SchedsimError
        Unknown `kernels` or `optimizer`.

    Notes
    -----
    O(number of ops) time and memory; a Llama of 7 billion parameters takes seconds.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> inputs = torch.zeros(16, 4), torch.zeros(16, dtype=torch.long)
    >>> captured = capture(model, inputs, torch.nn.functional.cross_entropy)
    >>> captured.graph.op_names[:4]
    ('0.addmm', '1.relu', '2.addmm', 'loss.log_softmax')
    """
    if kernels not in KERNELS:
        raise SchedsimError(
            f"kernels={kernels!r} is unknown", hint=f"one of {', '.join(map(repr, KERNELS))}"
        )
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    kwargs = kwargs or {}
    refuse_unusual(model)
    if recorded is None and has_memory(model, inputs, kwargs):
        recorded = record_step(model, loss, inputs, kwargs)
    if recorded is None:
        return _captured(model, inputs, kwargs, loss, kernels, optimizer, name, None)
    recorded.refuse_foreign_leaves()
    recorded.refuse_graph()
    with recorded.settled():
        return _captured(model, inputs, kwargs, loss, kernels, optimizer, name, recorded)


@no_collection()  # a trace makes many objects that live until its end: no garbage
def _captured(
    model: nn.Module,
    inputs: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    loss: Loss | None,
    kernels: str,
    optimizer: str | int,
    name: str | None,
    recorded: Recorded | None,
) -> CapturedGraph:
    mode = fake_mode()
    skeleton = make_skeleton(model, inputs, kwargs, loss, mode, recorded)
    if skeleton.device == "cuda":
        kernels = "native"
    substitute = kernels != "native"
    with attention.substituted(kernels):
        with _restored(recorded):
            traced = trace_once(skeleton, mode)
        if traced is None:
            mode = fake_mode()
            skeleton = make_skeleton(model, inputs, kwargs, loss, mode, recorded)
            with _restored(recorded):
                traced = trace(skeleton, mode)
    program = build_program(traced, skeleton)
    if recorded is not None and not (program.gradients or program.input_gradients):
        raise UnsupportedError(
            f"a trace of {name or type(model).__name__} reaches none of the parameters that its "
            "step trains: forward has them by another way than self, as by a function that is set "
            "on the model and holds an object around it",
            hint="plan it in place (in_place=True), or by blocks (level='block')",
        )
    state = optimizer_bytes(optimizer, model)
    name = name or type(model).__name__
    graph = to_graph(program, name, skeleton.static_bytes + state)
    real = all(t.device.type != "meta" for t in [*model.parameters(), *model.buffers()])
    real = real and not any(map(is_fake, model.parameters()))
    return CapturedGraph(
        graph=graph,
        backend="cuda" if substitute else skeleton.device,
        notes=_notes(program, skeleton.device, kernels, skeleton.static_bytes, state),
        front=traced.front,
        runnable=real and not substitute,
        program=program,
        model=model,
        loss=loss,
        call_plan=skeleton.step.plan,
        training=tuple(module.training for module in model.modules()),
        autocast=Autocast.now(),
        guards=recorded.state() if recorded is not None else None,
    )


@contextmanager
def _restored(recorded: Recorded | None) -> Iterator[None]:
    """Undo what a trace leaves on objects that the skeleton shares."""
    state = recorded.state() if recorded is not None else None
    try:
        # A trace of torch that fails within `torch.no_grad()` may leave gradients off.
        with torch.set_grad_enabled(torch.is_grad_enabled()):
            yield
    finally:
        if state is not None:
            state.restore()


def has_memory(model: nn.Module, inputs: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether a step can be run: nothing is on the meta device, and no tensor is fake."""
    tensors = [*model.parameters(), *model.buffers()]
    tensors += [t for t in tree_leaves((inputs, dict(kwargs))) if isinstance(t, torch.Tensor)]
    return not any(t.device.type == "meta" or is_fake(t) for t in tensors)


def record_step(
    model: nn.Module,
    loss: Loss | None,
    inputs: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    watched_loss: Any = None,
    *,
    parts_may_be_scripted: bool = False,
) -> Recorded:
    """Effects of a forward of the step besides computing (`guards.recording.record`)."""
    refuse_unshaped(model)
    refuse_foreign(model, (inputs, dict(kwargs)), parts_may_be_scripted=parts_may_be_scripted)
    num_extra = count_extra_inputs(model, loss, len(inputs))

    def run(inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return run_step(model, loss, num_extra, inputs, kwargs)

    return record(model, loss if watched_loss is None else watched_loss, inputs, kwargs, run)


def _notes(
    program: Program, device: str, kernels: str, static_bytes: int, state_bytes: int
) -> tuple[str, ...]:
    substitute = kernels != "native"
    notes = [
        f"kernels of {device}" + (", attention of cuda" if substitute else ""),
        f"static: parameters and buffers {static_bytes} bytes, optimizer state {state_bytes} "
        "bytes; gradients are counted from the op that makes them",
    ]
    if substitute:
        notes.append(attention.note_of(kernels))
    elif device == "cpu" and any("bmm" in c.name or "flash" in c.name for c in program.calls):
        notes.append(
            "attention is the CPU's: with dropout it stores two T x T matrices, which CUDA's fused "
            "kernels do not; for CUDA capture there, or pass kernels='cuda'"
        )
    num_random = sum(call.random for call in program.calls)
    if num_random:
        notes.append(
            f"{num_random} ops draw random numbers: a repeated run replays its first draw; the "
            "generator state kept for that is not counted (5056 bytes each on CPU, 16 on CUDA)"
        )
    if device == "cuda" and any(call.lean for call in program.calls):
        notes.append("BatchNorm runs PyTorch's own kernel, where the plain model may run cuDNN's")
    num_once = sum(call.once for call in program.calls if call.phase != "loss") - 1
    if num_once:
        notes.append(f"{num_once} ops update state and run once")
    return tuple(notes)

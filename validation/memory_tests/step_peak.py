"""The peak of a training step as PyTorch runs it, on tensors that have sizes but no memory."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import total_ordering
from typing import Any

import torch
from torch import nn

from schedsim.errors import SchedsimError, UnsupportedError
from schedsim.units import format_bytes, format_bytes_short, parse_bytes

from ..autocasts import run_backward
from ..capture import attention
from ..capture.attention_backends import KERNELS
from ..capture.eager_paths import eager_paths
from ..capture.optimizer_state import optimizer_bytes
from ..capture.skeleton import Loss, Skeleton, make_skeleton
from ..torch_private.dynamo_graphs import uncompiled
from ..torch_private.fake_tensors import fake_mode
from .lifetimes import Life, LifetimeTracker, hold_state
from .partitioned import run_partitioned

ROLES = ("static", "optimizer", "input", "kept", "gradient", "working")
_MOST_SHOWN = 6


@dataclass(frozen=True, slots=True)
class HeldTensor:
    """A tensor that is held at the peak.

    Attributes
    ----------
    name : str
        Module and op that made it (``layers.3.attn.softmax``), or the parameter it belongs to.
    size_bytes : int
    role : str
        ``"static"`` (parameter or buffer), ``"optimizer"``, ``"input"``, ``"kept"`` from the
        forward to the backward pass, ``"gradient"`` (of a parameter) or ``"working"``.
    reader : str
        For a kept tensor, the first backward op that reads it; empty if no op does.
    """

    name: str
    size_bytes: int
    role: str
    reader: str = ""


@total_ordering
@dataclass(frozen=True, eq=False)
class StepPeak:
    """The most bytes that a training step holds at once, and the tensors that hold them.

    A peak can be compared with sizes as people write them: ``peak <= "1.2GiB"``.

    Attributes
    ----------
    name : str
        Name of the model's class.
    total_bytes : int
    op : str
        The op that reaches the peak.
    tensors : tuple of HeldTensor
        Tensors alive at the peak, in the order in which they were made; their sizes add up to
        `total_bytes`.
    kernels : str
        Which kernels' attention was counted: ``"cuda"``, ``"cuda-sm90"``, ..., or ``"native"``.
    compiled : bool
        Whether the step was counted as torch.compile splits it.
    """

    name: str
    total_bytes: int
    op: str
    tensors: tuple[HeldTensor, ...]
    kernels: str = "native"
    compiled: bool = False

    def __int__(self) -> int:
        return self.total_bytes

    def __eq__(self, other: object) -> bool:
        size = _size(other)
        return NotImplemented if size is None else self.total_bytes == size

    def __lt__(self, other: object) -> bool:
        size = _size(other)
        return NotImplemented if size is None else self.total_bytes < size

    def __hash__(self) -> int:
        return hash(self.total_bytes)

    def __repr__(self) -> str:
        return f"StepPeak({self.name}: {format_bytes(self.total_bytes)} at {self.op})"

    def by_role(self) -> dict[str, int]:
        """Bytes at the peak for each role that occurs."""
        sums = {role: sum(t.size_bytes for t in self.tensors if t.role == role) for role in ROLES}
        return {role: size for role, size in sums.items() if size}

    def lines(self) -> list[str]:
        """The peak in words: the op, the sums by role, and the largest tensors."""
        roles = ", ".join(f"{k} {format_bytes_short(v)}" for k, v in self.by_role().items())
        lines = [f"peak of {self.name}: {format_bytes(self.total_bytes)} at {self.op}", roles]
        largest = sorted(self.tensors, key=lambda one: -one.size_bytes)[:_MOST_SHOWN]
        return lines + [f"{format_bytes_short(t.size_bytes)}: {in_words(t)}" for t in largest]


def in_words(tensor: HeldTensor) -> str:
    """``layers.3.attn.softmax kept for its backward``."""
    if tensor.role != "kept":
        return f"{tensor.name} ({tensor.role})"
    if not tensor.reader:
        return f"{tensor.name} kept, though no backward reads it"
    name = tensor.name.partition("#")[0]
    own = {f"grad.{name}": "its backward", f"recompute.{name}": "its recomputation"}
    return f"{tensor.name} kept for {own.get(tensor.reader, tensor.reader)}"


def _size(other: object) -> int | None:
    if isinstance(other, str):
        return parse_bytes(other)
    if isinstance(other, StepPeak):
        return other.total_bytes
    return other if isinstance(other, int) else None


def step_peak(
    model: nn.Module | Callable[[], tuple[Any, ...]],
    inputs: Any = (),
    loss: Loss | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    optimizer: str | int = "none",
    kernels: str = "cuda",
    compiled: bool | None = None,
) -> StepPeak:
    """The peak of one training step of `model`: its forward, loss and backward are run on fakes.

    The step is PyTorch's own, in its own order: what autograd keeps is kept, what checkpoints run
    again is run again. Nothing is allocated, so that a step of any size takes seconds on any
    machine, and nothing of `model` changes. The same step has the same peak to the byte.

    Parameters
    ----------
    model
        A model, real or on the meta device, in the mode in which it trains; or a function without
        parameters that returns ``(model, inputs, loss)``, called with the meta device for default.
    inputs
        Positional inputs; those that the loss takes besides the output come last.
    loss
        A function of the output and of the last inputs; ``None`` where the model returns its loss.
    kwargs
        Keyword inputs of the model.
    optimizer
        Optimizer whose state is resident: ``"none"``, ``"sgd"``, ``"sgd-momentum"``, ``"adam"``,
        ``"adamw"``, or bytes.
    kernels
        ``"cuda"`` counts fused attention as CUDA's kernels on an A100 store it, on any machine,
        ``"cuda-sm90"`` as those of an H100; ``"native"`` counts it as this machine's kernels do.
    compiled
        Whether to count the step as torch.compile splits it between forward and backward; by
        default where `model` is what ``torch.compile`` returned.

    Returns
    -------
    StepPeak

    Raises
    ------
    UnsupportedError
        The step computes a number from data, or cannot be run without memory.
    SchedsimError
        Unknown `kernels` or `optimizer`.

    Notes
    -----
    Storages are counted: neither the workspace inside of a kernel nor an allocator's rounding. In a
    compiled step the saved tensors are the partitioner's own, while working bytes are those of its
    graphs op by op, which fused kernels undercut. Python's cycle collector is off meanwhile.
    O(ops).

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(100, 100), torch.nn.ReLU())
    >>> peak = step_peak(model, (torch.zeros(50, 100),), lambda output: output.sum())
    >>> peak <= "0.2MiB", peak.by_role()["static"]
    (True, 40400)
    """
    if kernels not in KERNELS:
        raise SchedsimError(
            f"kernels={kernels!r} is unknown", hint=f"one of {', '.join(map(repr, KERNELS))}"
        )
    mode = fake_mode()
    if not isinstance(model, nn.Module):
        with torch.device("meta"):  # a module of fakes cannot change its number format
            model, inputs, loss = _built(model())
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    plain = uncompiled(model)
    compiled = plain is not model if compiled is None else compiled
    with _collector_at_rest():
        skeleton = make_skeleton(plain, tuple(inputs), kwargs or {}, loss, mode)
        substitute = "native" if skeleton.device == "cuda" else kernels
        tracker = LifetimeTracker()
        run = run_partitioned if compiled else _run
        with attention.substituted(substitute), eager_paths():
            try:
                end = run(skeleton, mode, tracker)
            except SchedsimError:
                raise
            except Exception as error:
                raise _refusal(error) from error
    return _peak_of(
        tracker, end, type(plain).__name__, optimizer_bytes(optimizer, plain), kernels, compiled
    )


def _built(built: Any) -> tuple[nn.Module, Any, Loss | None]:
    if not isinstance(built, tuple) or len(built) not in (2, 3):
        raise SchedsimError(
            f"the function returns a {type(built).__name__}, not (model, inputs, loss)",
            hint="return the three; the loss may be left out where the model returns it",
        )
    model, inputs, loss = (*built, None)[:3]
    return model, inputs, loss


@contextlib.contextmanager
def _collector_at_rest() -> Iterator[None]:
    """Collect no cycles meanwhile: when a collection happens is chance, and peaks must not be."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _run(skeleton: Skeleton, mode: Any, tracker: LifetimeTracker) -> int:
    """Run the step as autograd does; returns the moment at which its backward pass begins."""
    step = skeleton.step
    with mode, tracker, tracker.following(step.model):
        hold_state(skeleton, tracker)
        loss = step(*skeleton.tensors)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise UnsupportedError(
                "the step does not return one number that needs a gradient",
                hint="pass loss=, a function of the model's output (and of the last inputs)",
            )
        end, tracker.in_backward = tracker.now(), True
        run_backward(loss)
        for name, parameter in step.model.named_parameters():
            if parameter.grad is not None:
                tracker.life_of(parameter.grad).name = f"{name}.grad"
                tracker.life_of(parameter.grad).held = "gradient"
    return end


def _refusal(error: Exception) -> UnsupportedError:
    line = " ".join(str(error).split())[:200]
    return UnsupportedError(
        f"the step cannot be run without memory: {type(error).__name__}: {line}",
        hint="what Python asks of a tensor's values (item, if, nonzero) has no answer there: "
        "leave it out of the step, or test the part of the model around it",
    )


def _peak_of(
    tracker: LifetimeTracker, end: int, name: str, state: int, kernels: str, compiled: bool
) -> StepPeak:
    kept = {id(life) for life in tracker.alive(end) if not life.held}
    held = [_held(life, id(life) in kept) for life in tracker.alive(tracker.peak_moment)]
    if state:
        held.append(HeldTensor("optimizer state", state, "optimizer"))
    total = tracker.peak.total_bytes + state
    assert sum(one.size_bytes for one in held) == total, "lives and bytes must agree"
    return StepPeak(name, total, tracker.peak_op, tuple(held), kernels, compiled)


def _held(life: Life, kept: bool) -> HeldTensor:
    role = life.held or ("kept" if kept else "working")
    return HeldTensor(life.name, life.size_bytes, role, life.reader if role == "kept" else "")

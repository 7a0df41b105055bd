"""The two ways from a step to its joint graph: direct tracing, or Dynamo's reading of the code."""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from schedsim.errors import SchedsimError, UnsupportedError

from ..torch_private.autograd_nodes import sequence_number
from ..torch_private.dynamo_graphs import dynamo_graph
from ..torch_private.eager_kernels import eager_kernels
from ..torch_private.grouped_products import grouped_products
from ..torch_private.in_place_strides import strides_kept_in_place
from ..torch_private.joint_graphs import export_joint
from ..torch_private.kernel_layouts import true_layouts
from ..torch_private.recorded_joints import record_joint
from .ctc import whole_ctc
from .eager_paths import eager_paths
from .gru_cells import whole_gru_gates
from .recurrent import whole_recurrence
from .skeleton import Skeleton

WAY_OUT = (
    "if the plain model runs on these inputs, take the line out of forward, or plan the model by "
    "blocks: a chain needs no single graph, only blocks in a line"
)


class Span(NamedTuple):
    """A stay in a module: the autograd sequence numbers that were given out meanwhile."""

    start: int
    stop: int
    path: str


class Traced(NamedTuple):
    """A joint graph, and the modules that its forward ops come from.

    Attributes
    ----------
    spans
        Stays in modules, if the model was traced directly.
    front
        ``"direct"`` or ``"dynamo"``.
    has_loss
        Whether the code outside of the model is the loss.
    renamed
        Name of a parameter or buffer in the traced module -> its name in the step, if the two
        differ.
    """

    graph_module: torch.fx.GraphModule
    spans: tuple[Span, ...]
    front: str
    has_loss: bool
    renamed: dict[str, str]


def trace_once(skeleton: Skeleton, mode: Any) -> Traced | None:
    """The joint graph of `skeleton`, noted down in one run; ``None`` where `trace` is needed.

    It is the graph of `trace`, in less than half the time. Where it is ``None``, the code of the
    model may have run in part: `trace` wants a skeleton of its own.
    """
    step = skeleton.step
    spans: list[Span] = []
    handles = _watch(step, spans)
    try:
        with _recurrence(skeleton), eager_paths(), _as_kernels_do(skeleton):
            graph_module = record_joint(step, skeleton.tensors, mode)
    except SchedsimError:
        raise
    except Exception:  # `trace` finds it again, and says what it is
        return None
    finally:
        for handle in handles:
            handle.remove()
    return Traced(graph_module, tuple(spans), "direct", step.loss_function is not None, {})


def trace(skeleton: Skeleton, mode: Any) -> Traced:
    """The joint graph of `skeleton`, traced directly where that works, else through Dynamo.

    Raises
    ------
    UnsupportedError
        Neither way works; the message names the line of the model that prevents it.
    """
    spans: list[Span] = []
    has_loss = skeleton.step.loss_function is not None
    handles = _watch(skeleton.step, spans)
    try:
        with _recurrence(skeleton), eager_paths(), _as_kernels_do(skeleton):
            graph_module = export_joint(skeleton.step, skeleton.tensors, mode)
        return Traced(graph_module, tuple(spans), "direct", has_loss, {})
    except SchedsimError:
        raise
    except Exception as error:  # the model's own code may raise anything on fakes
        direct = error
    finally:
        for handle in handles:
            handle.remove()
    skeleton.step.questions = ()  # Dynamo reads the code itself, and takes no answers
    try:
        with _as_kernels_do(skeleton):
            step = dynamo_graph(skeleton.step, skeleton.tensors, mode)
            graph_module = export_joint(step, skeleton.tensors, mode)
        return Traced(graph_module, (), "dynamo", has_loss, _renamed(skeleton.step, step))
    except Exception as error:
        raise _refusal(direct, error) from error


@contextlib.contextmanager
def _as_kernels_do(skeleton: Skeleton) -> Iterator[None]:
    """The ops of a plain step, and results laid out as its kernels lay them out."""
    with contextlib.ExitStack() as whole:
        if skeleton.device == "cpu":
            whole.enter_context(whole_gru_gates())
            whole.enter_context(whole_ctc())
        with (
            eager_kernels(skeleton.tensors),
            grouped_products(),
            true_layouts(),
            strides_kept_in_place(),
        ):
            yield


def _renamed(step: nn.Module, traced: nn.Module) -> dict[str, str]:
    """Names that Dynamo changes: some versions turn a path into one word."""
    names: dict[int, str] = {}
    for name, tensor in _named_tensors(step):
        names.setdefault(id(tensor), name)
    own = dict(_named_tensors(step))
    return {
        name: names[id(tensor)]
        for name, tensor in _named_tensors(traced)
        if name not in own and id(tensor) in names
    }


def _named_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _recurrence(skeleton: Skeleton) -> Any:
    """How recurrent layers are traced: on the CPU each layer as one op.

    Raises
    ------
    UnsupportedError
        Their dropout is cuDNN's, whose numbers cannot be drawn again.
    """
    layers = [m for m in skeleton.step.modules() if isinstance(m, nn.RNNBase)]
    if not layers:
        return contextlib.nullcontext()
    if skeleton.device == "cpu":
        return whole_recurrence()
    if any(m.training and m.dropout and m.num_layers > 1 for m in layers):
        raise UnsupportedError(
            "cuDNN draws the dropout between recurrent layers from a state of its own, so that "
            "they cannot be run again",
            hint="dropout=0 in the layer, and nn.Dropout between layers",
        )
    return contextlib.nullcontext()


def _watch(step: nn.Module, spans: list[Span]) -> list[Any]:
    """Hooks that note when each module is traced; `spans` is filled in the order of exit."""
    entered: list[tuple[str, int]] = []
    handles = []
    for name, module in step.named_modules():
        # Code that the step runs outside of the model is the loss.
        path = "" if name == "model" else name.removeprefix("model.")
        path = "loss" if name in ("", "loss_function") and step.loss_function else path

        def enter(_module: nn.Module, _inputs: Any, *, path: str = path) -> None:
            entered.append((path, sequence_number()))

        def leave(_module: nn.Module, _inputs: Any, _output: Any, *, path: str = path) -> None:
            # A failed trace may have left entries of deeper modules behind.
            while entered:
                inside, start = entered.pop()
                if inside == path:
                    spans.append(Span(start, sequence_number(), path))
                    break

        handles.append(module.register_forward_pre_hook(enter))
        handles.append(module.register_forward_hook(leave))
    return handles


def _refusal(direct: Exception, dynamo: Exception) -> UnsupportedError:
    """The error a user sees: the line, and what is wrong with it."""
    text = str(dynamo)
    place = _line_of_dynamo(text) or _line_of_traceback(direct)
    reason = text.strip().splitlines()[0] if text.strip() else type(dynamo).__name__
    where = f"{place}: " if place else ""
    return UnsupportedError(
        f"{where}the model cannot be captured as one graph: {_short(reason)} "
        f"(traced directly: {_short(f'{type(direct).__name__}: {direct}')})",
        hint=WAY_OUT,
    )


def _short(text: str) -> str:
    line = text.strip().splitlines()[0] if text.strip() else text
    return line if len(line) <= 160 else line[:157] + "..."


def _line_of_dynamo(text: str) -> str | None:
    """The innermost line of the user's code that Dynamo names."""
    _, found, user = text.partition("from user code:")
    places = re.findall(r'File "([^"]+)", line (\d+), in [^\n]*\n\s*([^\n]+)', user)
    return _place(*places[-1]) if found and places else None


def _line_of_traceback(error: Exception) -> str | None:
    """The innermost line outside of torch and of this package."""
    frames = traceback.extract_tb(error.__traceback__)
    own = str(__file__).rsplit("/", 2)[0]
    outside = [f for f in frames if "/torch/" not in f.filename and not f.filename.startswith(own)]
    if not outside:
        return None
    frame = outside[-1]
    return _place(frame.filename, frame.lineno, frame.line or "")


def _place(file: str, line: object, code: str) -> str:
    return f"{file}:{line} `{code.strip()}`"

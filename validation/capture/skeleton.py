"""A model without its memory: its modules over fake tensors, as a step that returns the loss."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from schedsim.errors import SchedsimError, UnsupportedError

from ..guards.asking import Answers, Question
from ..guards.recording import Recorded
from ..torch_private.fake_tensors import asked_by, is_fake
from ..torch_private.open_functionals import bodies_seen_by
from ..torch_private.pytrees import TreeSpec, tree_flatten, tree_leaves, tree_unflatten
from ..torch_private.storage_refs import storage_key
from .held_functions import hold_twins

Loss = Callable[..., torch.Tensor]


class CallPlan(NamedTuple):
    """How the inputs of a step are shared out between the model and the loss.

    Attributes
    ----------
    spec
        How ``(inputs, kwargs)`` is nested.
    is_tensor
        For each leaf, whether it is a tensor.
    constants
        The leaves, ``None`` where a tensor goes.
    num_extra
        How many of the last positional inputs go to the loss.
    """

    spec: TreeSpec
    is_tensor: tuple[bool, ...]
    constants: tuple[Any, ...]
    num_extra: int

    def tensors(self, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        """The tensors among the leaves, in order.

        Raises
        ------
        SchedsimError
            The inputs are not nested as the captured ones, or another constant is among them.
        """
        leaves, spec = tree_flatten((tuple(inputs), dict(kwargs)))
        if spec != self.spec:
            raise SchedsimError(
                "the inputs are not nested as the captured ones: "
                f"{_sketch(spec)} instead of {_sketch(self.spec)}",
                hint="pass the same arguments, positional and keyword, or capture again",
            )
        found = []
        for leaf, tensor, constant in zip(leaves, self.is_tensor, self.constants, strict=True):
            if isinstance(leaf, torch.Tensor) and tensor:
                found.append(leaf)
            elif isinstance(leaf, torch.Tensor) or tensor or _differ(leaf, constant):
                captured = "a tensor" if tensor else _shown(constant)
                raise SchedsimError(
                    f"an input is {_shown(leaf)} where {captured} was captured",
                    hint="what is no tensor is part of the graph: give a tensor, or capture again "
                    "for another value",
                )
        return found

    def rebuild(self, tensors: tuple[torch.Tensor, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The inputs and keyword inputs with `tensors` for leaves."""
        rest = iter(tensors)
        leaves = [
            next(rest) if tensor else constant
            for tensor, constant in zip(self.is_tensor, self.constants, strict=True)
        ]
        inputs, kwargs = tree_unflatten(leaves, self.spec)
        return inputs, kwargs


def _differ(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype != other.dtype or one.tobytes() != other.tobytes()
    return bool(one != other) if type(one) is type(other) else True


def _sketch(spec: object) -> str:
    text = str(spec)
    return text if len(text) <= 80 else text[:77] + "..."


def _shown(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor {tuple(value.shape)}"
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


class SkeletonStep(nn.Module):
    """A model and its loss as one module over flat tensors, returning the scalar loss.

    Attributes
    ----------
    questions
        What Python asks of tensors on the way, with the answers; the tensors are returned too.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss | None,
        plan: CallPlan,
        questions: tuple[Question, ...] = (),
    ) -> None:
        super().__init__()
        self.model = model
        self.loss_function = loss
        self.plan = plan
        self.questions = questions

    def forward(self, *tensors: torch.Tensor) -> Any:
        """The loss, and the tensors that were asked."""
        inputs, kwargs = self.plan.rebuild(tensors)
        extra = self.plan.num_extra
        if not self.questions:
            return run_step(self.model, self.loss_function, extra, inputs, kwargs)
        answers = Answers(self.questions)
        with asked_by(answers.ask), answers, bodies_seen_by(answers):
            loss = run_step(self.model, self.loss_function, extra, inputs, kwargs)
        if len(answers.tensors) != len(self.questions):
            raise UnsupportedError(
                "the trace asks fewer values of tensors than the real run did",
                hint="plan the model by blocks",
            )
        return (loss, *(tensor for asked in answers.tensors for tensor in asked))


def run_step(
    model: nn.Module,
    loss: Loss | None,
    num_extra: int,
    inputs: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> torch.Tensor:
    """The loss of `model` on `inputs`, the last `num_extra` of which are the loss's own."""
    own = inputs[: len(inputs) - num_extra]
    output = model(*own, **kwargs)
    if loss is None:
        return output  # type: ignore[no-any-return]
    return loss(output, *inputs[len(inputs) - num_extra :])


def count_extra_inputs(model: nn.Module, loss: Loss | None, num_inputs: int) -> int:
    """How many of the last inputs are the loss's: its required parameters after the output.

    A loss of ``(output, *extra)``, or a builtin, which does not say what it takes, takes what the
    model's ``forward`` has no parameter for.

    Examples
    --------
    >>> count_extra_inputs(nn.Linear(2, 2), nn.functional.cross_entropy, 2)
    1
    >>> count_extra_inputs(nn.Linear(2, 2), lambda output: output.sum(), 1)
    0
    >>> count_extra_inputs(nn.Linear(2, 2), torch.sum, 1)
    0
    >>> count_extra_inputs(nn.Linear(2, 2), torch.dist, 2)
    1
    """
    if loss is None:
        return 0
    loss = getattr(loss, "inner_loss", loss)  # of one that wraps another
    positional, variadic = _positional(loss.forward if isinstance(loss, nn.Module) else loss)
    if not variadic:
        return min(max(positional - 1, 0), num_inputs)
    parameters = inspect.signature(model.forward).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return 0
    taken = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
    return max(num_inputs - taken, 0)


def _positional(function: Callable[..., Any]) -> tuple[int, bool]:
    """Number of required positional parameters, and whether there may be any number more."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin that does not say: what the model leaves
        return 1, True
    required = sum(
        p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
        for p in parameters
    )
    return required, any(p.kind is p.VAR_POSITIONAL for p in parameters)


class Skeleton(NamedTuple):
    """A step over fakes.

    Attributes
    ----------
    step : SkeletonStep
    tensors
        Its fake inputs.
    device
        ``"cpu"`` or ``"cuda"``: whose kernels will be traced.
    canonical
        Name of a parameter or buffer in `step` -> the first name that the same tensor has in the
        model.
    requires_grad
        Canonical names of the parameters that get a gradient.
    static_bytes
        Of all parameters and buffers, each storage once.
    """

    step: SkeletonStep
    tensors: tuple[torch.Tensor, ...]
    device: str
    canonical: dict[str, str]
    requires_grad: tuple[str, ...]
    static_bytes: int


def make_skeleton(
    model: nn.Module,
    inputs: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    loss: Loss | None,
    mode: Any,
    recorded: Recorded | None = None,
) -> Skeleton:
    """`model` and `inputs` over fakes of `mode`; nothing of `model` is changed or copied."""
    refuse_unusual(model)
    device = _device(model, inputs)
    memo: dict[int, Any] = {}
    if recorded is not None:
        # Tensors in plain attributes are read where they are, as the model itself reads them.
        memo.update((id(t), t) for t in recorded.before.tensors.values())
        # A reparametrised weight is computed anew by every forward, and only looked at between.
        for module in model.modules():
            for value in vars(module).values():
                if isinstance(value, torch.Tensor) and not value.is_leaf:
                    memo[id(value)] = value.detach()
    with mode:
        for parameter in model.parameters():
            memo[id(parameter)] = nn.Parameter(
                _fake(parameter, device), requires_grad=parameter.requires_grad
            )
        own = list(loss.buffers()) if isinstance(loss, nn.Module) else []
        for buffer in [*model.buffers(), *own]:
            memo[id(buffer)] = _fake(buffer, device)
        leaves, spec = tree_flatten((tuple(inputs), dict(kwargs)))
        tensors = []
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                fake = _fake(leaf, device)
                tensors.append(fake.requires_grad_(leaf.requires_grad))
    is_tensor = tuple(isinstance(leaf, torch.Tensor) for leaf in leaves)
    constants = tuple(None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
    plan = CallPlan(spec, is_tensor, constants, count_extra_inputs(model, loss, len(inputs)))
    try:
        skeleton = copy.deepcopy(model, memo)
        hold_twins(model, skeleton, memo)
        loss = copy.deepcopy(loss, memo) if isinstance(loss, nn.Module) else loss
    except Exception as error:  # any class of the model's own may refuse
        raise UnsupportedError(
            f"the model cannot be copied without its memory: {type(error).__name__}: {error}",
            hint="keep tensors in buffers, not in plain attributes, or plan it by blocks",
        ) from error
    canonical: dict[str, str] = {}
    first: dict[int, str] = {}
    step = SkeletonStep(skeleton, loss, plan, recorded.questions if recorded is not None else ())
    for named in (step.named_parameters, step.named_buffers):
        for name, tensor in named(remove_duplicate=False):
            canonical[name] = first.setdefault(id(tensor), name.removeprefix("model."))
    needs = tuple(n.removeprefix("model.") for n, p in step.named_parameters() if p.requires_grad)
    storages: dict[int, int] = {}
    for tensor in [*step.parameters(), *step.buffers()]:
        storages[storage_key(tensor)] = tensor.untyped_storage().nbytes()
    return Skeleton(step, tuple(tensors), device, canonical, needs, sum(storages.values()))


def refuse_unshaped(model: nn.Module) -> None:
    """Raise for parameters of lazy layers that have not run."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
            raise UnsupportedError(
                f"{name} has no shape yet", hint="run the model once, so that lazy layers learn it"
            )


def refuse_foreign(model: nn.Module, inputs: Any, *, parts_may_be_scripted: bool = False) -> None:
    """Raise for what no step can be planned with, at any level, in a line each."""
    for path, module in model.named_modules():
        name = path or "the model"
        if isinstance(module, torch.jit.ScriptModule) and not (path and parts_may_be_scripted):
            raise UnsupportedError(
                f"{name} is compiled by TorchScript, whose ops cannot be seen",
                hint="give the module that was scripted",
            )
        sparse = isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse
        if sparse and module.weight.requires_grad:
            raise UnsupportedError(
                f"the gradient of {name} is sparse (sparse=True), of a size that depends on data",
                hint="sparse=False, or freeze it",
            )
    leaves = {f"input {i}": leaf for i, leaf in enumerate(tree_leaves(inputs))}
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, leaf in {**held, **leaves}.items():
        if not isinstance(leaf, torch.Tensor):
            continue
        if leaf.is_nested:
            raise UnsupportedError(
                f"{name} is a nested tensor, whose bytes no plan can foresee",
                hint="pad it, with a mask",
            )
        if leaf.layout is not torch.strided:
            raise UnsupportedError(
                f"{name} is a sparse tensor ({leaf.layout}), which no trace takes",
                hint="give its indices and values, and add rows with index_add; or a dense tensor",
            )


def refuse_unusual(model: nn.Module) -> None:
    """Raise for parameters whose size is not that of a plain tensor of their shape."""
    refuse_unshaped(model)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if type(tensor.data) is not torch.Tensor and not is_fake(tensor.data):
            raise UnsupportedError(
                f"{name} is a {type(tensor.data).__name__}, not a plain tensor",
                hint="plan it by blocks (level='block'), or before it is sharded or quantised",
            )
        if tensor.layout is not torch.strided:
            raise UnsupportedError(f"{name} is sparse", hint="capture works on dense parameters")


def _fake(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """A fake of the same shape, strides and type; those on the meta device move to `device`."""
    place = device if tensor.device.type == "meta" else tensor.device
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=place)


def _device(model: nn.Module, inputs: tuple[Any, ...]) -> str:
    """Where the step runs; a step on the meta device is planned for the best device here."""
    tensors = [*model.parameters(), *model.buffers()]
    tensors += [one for one in inputs if isinstance(one, torch.Tensor)]
    kinds = {tensor.device.type for tensor in tensors} - {"meta"}
    if "cuda" in kinds:
        return "cuda"
    if kinds - {"cpu"}:
        raise UnsupportedError(
            f"the model is on {', '.join(sorted(kinds))}; steps on cpu and cuda can be captured",
            hint="move it to one of the two, or to the meta device for planning",
        )
    if kinds:
        return "cpu"
    return "cuda" if torch.cuda.is_available() else "cpu"

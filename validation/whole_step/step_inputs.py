"""The inputs of a step, checked before anything is traced: wrong use is named in one line."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from schedsim.errors import SchedsimError

from ..capture.skeleton import count_extra_inputs
from ..torch_private.pytrees import tree_leaves


def check_step_inputs(
    model: nn.Module, loss: Any, inputs: tuple[Any, ...], keywords: Mapping[str, Any]
) -> None:
    """Raise where `model` and `loss` cannot be called with the inputs of a step.

    Raises
    ------
    SchedsimError
        `loss` is no function or is missing; a keyword belongs to the loss; an input is missing.

    Examples
    --------
    >>> check_step_inputs(nn.Linear(2, 2), nn.functional.mse_loss, (1, 2), {})
    >>> try:
    ...     check_step_inputs(nn.Linear(2, 2), None, (1, 2), {})
    ... except SchedsimError as error:
    ...     print(error.message)
    Linear takes 1 input, and is given 2: what takes the last, loss=, is missing
    """
    name = type(model).__name__
    if isinstance(loss, type):
        raise SchedsimError(
            f"loss={loss.__name__} is a class", hint=f"an instance of it: loss={loss.__name__}()"
        )
    if loss is not None and not callable(loss):
        raise SchedsimError(
            f"loss={loss!r} is no function", hint="a function of the output, and of the last inputs"
        )
    try:
        parameters = inspect.signature(model.forward).parameters
    except (TypeError, ValueError):  # a builtin that does not state its arguments
        return
    kinds = [p.kind for p in parameters.values()]
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        unknown = [key for key in keywords if key not in parameters]
        if unknown:
            raise SchedsimError(
                f"{name} takes no keyword {unknown[0]!r}",
                hint="what the loss takes beside the output comes last, by position: (x, target)"
                + ("" if loss is not None else ", loss=cross_entropy"),
            )
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return
    own = [p for p in parameters.values() if p.kind in _BY_PLACE and p.name not in keywords]
    if loss is None and len(inputs) > len(own):
        raise SchedsimError(
            f"{name} takes {_count(len(own), 'input')}, and is given {len(inputs)}: what takes the "
            "last, loss=, is missing",
            hint="loss=cross_entropy, or in_place=True for a loss that the loop computes",
        )
    num_extra = count_extra_inputs(model, loss, len(inputs))
    required = [p for p in own if p.default is p.empty]
    if loss is not None and len(inputs) - num_extra < len(required):
        raise SchedsimError(
            f"a step of {name} is given {_count(len(inputs), 'input')}, of which its loss takes "
            f"{num_extra}: {required[len(inputs) - num_extra].name!r} is missing",
            hint="module(x, target) gives the loss; in_place=True is for a loss that the loop "
            "computes of the model's output",
        )


def check_inputs_in_place(
    model: nn.Module, inputs: tuple[Any, ...], keywords: Mapping[str, Any]
) -> None:
    """Raise where `model` cannot be called with `inputs`, or has nothing to train.

    Raises
    ------
    SchedsimError
        An input is one too many, unknown or missing; no parameter and no input needs a gradient.

    Examples
    --------
    >>> try:
    ...     check_inputs_in_place(nn.Linear(2, 2), (1, 2), {})
    ... except SchedsimError as error:
    ...     print(error.message)
    Linear takes 1 input, and is given 2
    """
    name = type(model).__name__
    tensors = [*model.parameters(), *tree_leaves((inputs, dict(keywords)))]
    if not any(isinstance(t, Tensor) and t.requires_grad for t in tensors):
        raise SchedsimError(
            f"no parameter of {name} requires a gradient, and no input: no step keeps anything",
            hint="model.requires_grad_(); or, where the model stays frozen and the loop trains "
            "what comes before it, give the input as the loop does: x.requires_grad_()",
        )
    try:
        signature = inspect.signature(model.forward)
    except (TypeError, ValueError):  # a builtin that does not state its arguments
        return
    try:
        signature.bind(*inputs, **keywords)
    except TypeError as error:
        parameters = signature.parameters
        unknown = [key for key in keywords if key not in parameters]
        places = [p for p in parameters.values() if p.kind in _BY_PLACE]
        line = f"{name} cannot be called with these inputs: {error}"
        if unknown:
            line = f"{name} takes no keyword {unknown[0]!r}"
        elif len(inputs) > len(places):
            line = f"{name} takes {_count(len(places), 'input')}, and is given {len(inputs)}"
        raise SchedsimError(
            line,
            hint="in place, the loop computes the loss: give what the model is called with, "
            "without the target",
        ) from error


_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"

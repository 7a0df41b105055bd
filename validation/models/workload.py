"""The model, inputs and loss that a builder returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn

from schedsim.checks.checked_arguments import check_arguments, hints_of
from schedsim.errors import SchedsimError, did_you_mean


class Workload(NamedTuple):
    """A model, the positional inputs of one step, and its loss: ``loss(model(*inputs))``."""

    model: nn.Module
    inputs: tuple[Any, ...]
    loss: Callable[[Any], Tensor] | None

    def to(self, *arguments: Any, **keywords: Any) -> Workload:
        """Everything moved (or cast, where floating) as `torch.nn.Module.to` does."""
        model = self.model.to(*arguments, **keywords)
        inputs = tuple(_moved(item, arguments, keywords) for item in self.inputs)
        loss = self.loss.to(*arguments, **keywords) if isinstance(self.loss, nn.Module) else None
        return Workload(model, inputs, loss if loss is not None else self.loss)


Build = TypeVar("Build", bound=Callable[..., Workload])


def builder(build: Build) -> Build:
    """`build`, which says in one line what it cannot build: wrong types, sizes that clash.

    Raises
    ------
    SchedsimError
        From the decorated builder: an option, its value, and what it may be.
    """

    @wraps(build)
    def checked_build(**options: Any) -> Workload:
        known = inspect.signature(build).parameters
        for option in options:
            if option not in known:
                raise SchedsimError(
                    f"{build.__name__} has no option {option!r}",
                    hint=did_you_mean(option, known, f"it has {', '.join(known)}"),
                )
        check_arguments(build, options)
        counts = [name for name, hint in hints_of(build).items() if hint in (int, int | None)]
        for option in counts:
            value = options.get(option)
            if value is not None and value < 1:
                raise SchedsimError(f"{option} {value} is not at least 1", hint="1 or more")
        try:
            return build(**options)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, TypeError, ArithmeticError, LookupError) as error:
            if not options:
                raise
            given = ", ".join(f"{name}={value}" for name, value in options.items())
            reason = " ".join((str(error) or type(error).__name__).split())
            raise SchedsimError(
                f"{build.__name__}({given}): {reason}", hint="these sizes do not go together"
            ) from error

    return cast("Build", checked_build)


def check_multiple(name: str, value: int, of: str, divisor: int) -> None:
    """Refuse a size that is no multiple of another, by the names of both options.

    Raises
    ------
    SchedsimError
        It is none.
    """
    if value % divisor:
        raise SchedsimError(
            f"{name} {value} is not a multiple of {of}, {divisor}", hint=f"change {name} or {of}"
        )


def _moved(item: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    if not isinstance(item, torch.Tensor):
        return item
    moved = item.to(*arguments, **keywords)
    # Whole numbers stay what they are, as in Module.to.
    return moved if item.is_floating_point() else moved.to(item.dtype)


def num_parameters(model: nn.Module) -> int:
    """Number of parameters, shared ones once."""
    return sum(parameter.numel() for parameter in model.parameters())

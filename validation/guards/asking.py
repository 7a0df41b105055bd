"""Values that Python asks of tensors: ``if mask.all()``, ``x.max().item()``.

A trace over tensors without memory cannot answer such questions. The answers of one real run are
noted and given to the trace in the same order. Every step that runs by the trace checks them: it
computes the tensors again, and another answer ends the step before the step has changed anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from schedsim.errors import SchedsimError, UnsupportedError

from ..torch_private.op_modes import chosen_branch
from ..torch_private.pytrees import tree_flatten, tree_unflatten

_QUESTIONS: dict[Any, str] = {
    Tensor.item: "item()",
    Tensor.__bool__: "bool()",
    Tensor.__int__: "int()",
    Tensor.__float__: "float()",
    Tensor.__index__: "an index",
    Tensor.__contains__: "in",
    Tensor.tolist: "tolist()",
    Tensor.is_nonzero: "is_nonzero()",
    torch.is_nonzero: "is_nonzero()",
    Tensor.equal: "equal()",
    torch.equal: "equal()",
    Tensor.allclose: "allclose()",
    torch.allclose: "allclose()",
}
_MOST_NUMBERS = 100_000


class OtherAnswer(SchedsimError):
    """A tensor of the step has another value than the one that the plan was made for."""


class Question(NamedTuple):
    """A question that was asked of some tensors, and the answer.

    Attributes
    ----------
    function
        Called as ``function(*arguments)``; its flat arguments give tensors by position.
    leaves, spec
        Leaves and structure of ``(args, kwargs)``; ``None`` stands in place of a tensor.
    """

    function: Callable[..., Any]
    leaves: tuple[Any, ...]
    is_tensor: tuple[bool, ...]
    spec: Any
    answer: Any

    @property
    def name(self) -> str:
        """The question in words."""
        return _QUESTIONS[self.function]

    def ask(self, tensors: tuple[Tensor, ...]) -> Any:
        """The answer for other tensors."""
        rest = iter(tensors)
        leaves = [
            next(rest) if tensor else leaf
            for leaf, tensor in zip(self.leaves, self.is_tensor, strict=True)
        ]
        args, kwargs = tree_unflatten(leaves, self.spec)
        return self.function(*args, **kwargs)


class Answers(TorchFunctionMode):
    """Notes what Python asks of tensors, or answers from `known` questions.

    Attributes
    ----------
    questions
        Questions asked so far.
    tensors
        For each question answered from `known`, the tensors, detached from autograd.
    branches
        Whether `torch.cond` has chosen a branch.
    """

    def __init__(self, known: tuple[Question, ...] | None = None) -> None:
        super().__init__()
        self.known = known
        self.questions: list[Question] = []
        self.tensors: list[tuple[Tensor, ...]] = []
        self.branches = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        branch = chosen_branch(func, args) if self.known is None else None
        if branch is not None:
            # Within modes Dynamo leaves `torch.cond` to eager mode, whose own op would have to be
            # given the parameters that a branch reads.
            self.branches = True
            with self:
                return branch()
        if func in _QUESTIONS:
            return self._asked(func, args, kwargs)
        if self.known is not None and func in (Tensor.numpy, Tensor.__array__):
            raise UnsupportedError(
                "forward reads the values of a tensor into NumPy",
                hint="stay with torch, or plan the model by blocks",
            )
        return func(*args, **kwargs)

    def ask(self, function: Any, *tensors: Tensor) -> Any:
        """The answer to ``function(*tensors)``."""
        return self._asked(function, tensors, {})

    def _asked(self, func: Any, args: Any, kwargs: Any) -> Any:
        leaves, spec = tree_flatten((args, kwargs))
        is_tensor = tuple(isinstance(leaf, Tensor) for leaf in leaves)
        tensors = tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))
        constants = tuple(None if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        if self.known is None:
            answer = func(*args, **kwargs)
            if sum(t.numel() for t in tensors) <= _MOST_NUMBERS:
                self.questions.append(Question(func, constants, is_tensor, spec, answer))
            else:
                self.questions.append(Question(func, constants, is_tensor, None, answer))
            return answer
        position = len(self.tensors)
        if position >= len(self.known):
            raise UnsupportedError(
                f"the trace asks {_QUESTIONS[func]} of a tensor where the real run did not",
                hint="plan the model by blocks",
            )
        question = self.known[position]
        if question.function is not func or question.leaves != constants or question.spec is None:
            raise UnsupportedError(
                f"the trace asks {_QUESTIONS[func]} of a tensor, the real run {question.name}",
                hint="plan the model by blocks",
            )
        self.tensors.append(tuple(tensor.detach().clone() for tensor in tensors))
        return question.answer


class Expect:
    """A call of a program that checks that the tensors answer as they did at the capture.

    Raises
    ------
    OtherAnswer
        The tensors answer otherwise.
    """

    def __init__(self, question: Question, where: str = "") -> None:
        self.question, self.where = question, where
        self.__name__ = f"expect {question.name}"

    def probe(self, *tensors: Tensor) -> None:
        """Ask without checking the answer, to measure the cost of asking."""
        self.question.ask(tensors)

    def __call__(self, *tensors: Tensor) -> None:
        answer = self.question.ask(tensors)
        if not equal_answers(answer, self.question.answer):
            raise OtherAnswer(
                f"{self.question.name} of a tensor of the step is {_short(answer)} where "
                f"{_short(self.question.answer)} was captured",
                hint="what Python reads from tensors is part of the graph: capture again",
            )


def equal_answers(one: Any, two: Any) -> bool:
    """Whether two answers are equal, with NaNs equal to NaNs."""
    if isinstance(one, list):
        return len(one) == len(two) and all(map(equal_answers, one, two))
    return type(one) is type(two) and bool(one == two or (one != one and two != two))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."

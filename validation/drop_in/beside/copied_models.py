"""Copies of models with a budget, which have none: one that is trained is told of.

``copy.deepcopy``, ``pickle`` and ``torch.load`` make plain models. A copy that is saved or
evaluated needs no budget, so that the line comes where an optimizer steps one.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from ...guards.plan_variants import PlainStepWarning
from ...torch_private.copied_modules import when_copied
from ...user_warnings import warn_user
from .held_state import changes_parameters
from .process_ledger import is_of_any

_Form = tuple[tuple[str, tuple[int, ...]], ...]
"""The names and sizes of a model's parameters."""


class CopiedModels:
    """The copies in this process of models that have or had a budget.

    Parameters
    ----------
    is_known
        Whether some of these parameters are those of a model with a budget.
    """

    def __init__(self, is_known: Callable[[Iterable[torch.Tensor]], bool]) -> None:
        self._is_known = is_known
        self._budgeted: dict[int, weakref.ref[nn.Module]] = {}
        self._forms: dict[type, set[_Form]] = {}  # of those that copies may have been made from
        self._copies: list[weakref.ref[nn.Module]] = []
        self._told: set[type] = set()

    def gets_budget(self, model: nn.Module) -> None:
        """Look out for copies of `model`, which gets a budget."""
        if not self._has_budget(model):
            alive = {i: ref for i, ref in self._budgeted.items() if ref() is not None}
            self._budgeted = alive | {id(model): weakref.ref(model)}
            self._told.discard(type(model))

    def loses_budget(self, model: nn.Module) -> None:
        """`model` has no budget any more."""
        if self._has_budget(model):
            del self._budgeted[id(model)]

    def _has_budget(self, model: nn.Module) -> bool:
        known = self._budgeted.get(id(model))
        return known is not None and known() is model

    def gives(self, module: nn.Module) -> None:
        """A copy of `module` is made, now or from a file later."""
        if self._has_budget(module):
            self._forms.setdefault(type(module), set()).add(_form_of(module))

    def is_made(self, module: nn.Module) -> None:
        """`module` is a copy of another one."""
        if type(module) in self._forms and type(module) not in self._told:
            self._copies = [it for it in self._copies if it() is not None]
            self._copies.append(weakref.ref(module))

    def is_stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Say so if `optimizer` has stepped a copy without a budget, once until others get one."""
        if not self._copies or not changes_parameters(optimizer):
            return
        stepped = {id(it) for group in optimizer.param_groups for it in group["params"]}
        for copied in self._alive():
            kind = type(copied)
            trained = [it for it in copied.parameters() if id(it) in stepped]
            if not trained or self._is_known(trained):
                continue
            if _form_of(copied) not in self._forms[kind]:
                continue
            self._told.add(kind)
            self._copies = [it for it in self._copies if type(it()) is not kind]
            warn_user(
                f"an optimizer steps a copy of {kind.__name__}, which has a budget: a copy "
                "(copy.deepcopy, pickle, torch.load) has none, so that its steps run as they are; "
                "give it one, as by schedsim.rematerialize(copy, inputs, budget, in_place=True)",
                PlainStepWarning,
            )
            return

    def _alive(self) -> list[nn.Module]:
        return [it for ref in self._copies if (it := ref()) is not None]


def _form_of(model: nn.Module) -> _Form:
    return tuple((name, tuple(it.shape)) for name, it in model.named_parameters())


COPIES = CopiedModels(is_of_any)
when_copied(COPIES.gives, COPIES.is_made)
register_optimizer_step_post_hook(lambda optimizer, *_: COPIES.is_stepped(optimizer))

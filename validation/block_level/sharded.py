"""Blocks whose parameters are sharded over ranks by FSDP2.

A block gathers its parameters when it runs, and frees them when its run is over, unless its own
backward comes next. Between two runs, only the tensors that the schedule names and a rank's share
of parameters and gradients are alive. Nothing is gathered ahead; the memory that gathering and
reducing take is measured as part of the workspaces of the runs. Modules that were sharded in one
call are gathered together, which is sound where they run in one part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from schedsim.errors import UnsupportedError
from schedsim.units import format_bytes

from ..torch_private import sharded_groups as private
from .block_program import BlockProgram, BlockRun
from .parts import Part


@dataclass(frozen=True, slots=True)
class GroupedCall:
    """A call of a module that was sharded in one call with others: how many parts had begun."""

    module: nn.Module
    num_begun: int


@contextmanager
def grouped_calls(model: nn.Module, parts: Sequence[Part]) -> Iterator[list[GroupedCall]]:
    """The calls in a forward of `model`, run inside, of modules that gather together."""
    calls: list[GroupedCall] = []
    begun: list[nn.Module] = []
    # Modules around the blocks belong to the part before and the part after; blocks to one.
    counts = Counter(m for part in parts for m in part.modules)
    handles = []
    together = [m for m in model.modules() if private.is_sharded(m) and private.is_grouped(m)]

    def begins(module: nn.Module, _: Any) -> None:
        begun.append(module)

    def called(module: nn.Module, _: Any) -> None:
        calls.append(GroupedCall(module, len(begun)))

    # Models without such modules get no hooks: compiled blocks would be compiled again.
    for module in model.modules() if together else ():
        if counts[module] == 1:
            handles.append(module.register_forward_pre_hook(begins))
    handles += [module.register_forward_pre_hook(called) for module in together]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


@dataclass(frozen=True)
class Sharding:
    """The modules of each part that gather parameters, and the states of all of these modules."""

    modules: tuple[tuple[Any, ...], ...]
    states: tuple[Any, ...]
    gathered_bytes: tuple[int, ...]

    @classmethod
    def of(
        cls, model: nn.Module, parts: Sequence[Part], calls: Sequence[GroupedCall] = ()
    ) -> Sharding | None:
        """The sharded modules of each part; ``None`` where nothing is sharded by FSDP2.

        `calls` are those of a whole forward, by `grouped_calls`.

        Raises
        ------
        UnsupportedError
            Several parts read parameters that are sharded together, or the user has chosen what to
            gather ahead.
        """
        states = tuple(dict.fromkeys(private.states(model)))  # one of several modules, once
        if not states:
            return None
        for state in states:
            private.frees_at_once(state)
        if any(map(private.prefetches, states)):
            raise UnsupportedError(
                "parameters are to be gathered ahead (set_modules_to_forward_prefetch or "
                "set_modules_to_backward_prefetch), which no plan counts",
                hint="leave these calls out: blocks gather their own when they run; or "
                "in_place=True, which keeps them",
            )
        of_parts = []
        for part in parts:
            inside = {
                m: None for module in part.modules for m in module.modules() if m is not model
            }
            gathering = {private.state_of(m): m for m in inside if private.is_sharded(m)}
            of_parts.append(tuple(gathering.values()))
        for name, module in model.named_modules():
            if not private.is_sharded(module):
                continue
            if private.is_grouped(module):
                spans = not _runs_at_once(private.sharded_with(module), calls)
            else:
                spans = _spans(module, parts, is_root=module is model)
            if spans:
                raise UnsupportedError(
                    f"the parameters of {name or 'the model itself'} are sharded as one group, "
                    "which is gathered for more than one block",
                    hint="call fully_shard on each block, and on the modules around them that hold "
                    "parameters: embedding, norm, head",
                )
        sizes = tuple(sum(map(_gathered_bytes, modules)) for modules in of_parts)
        return cls(tuple(of_parts), states, sizes)

    def check(self) -> None:
        """Refuse steps whose gradients are not sharded."""
        if not all(map(private.reduces, self.states)):
            raise UnsupportedError(
                "gradients are not reduced in this step (set_requires_gradient_sync(False)): whole "
                "ones would stay, which no plan counts",
                hint="reduce in every step; shares of gradients add up as well",
            )
        if not all(map(private.reduces_over_replicas, self.states)):
            raise UnsupportedError(
                "gradients are not reduced over replicas in this step "
                "(set_requires_all_reduce(False)): what waits for that would stay, which no plan "
                "counts",
                hint="reduce in every step; or in_place=True, which counts it",
            )

    def begin_backward(self) -> None:
        """Gather nothing ahead: a schedule's order is not the reversed order of the forward."""
        for state in self.states:
            private.forget_order(state)

    def free_gathered(self, index: int) -> None:
        """Free the gathered parameters of part `index`; only the shares are kept."""
        for module in self.modules[index]:
            module.reshard()
            private.forget_smaller_shards(private.state_of(module))

    def after(self, run: BlockRun, following: BlockRun | None) -> None:
        """Free what `run` gathered, unless its own backward follows and would gather it again.

        A backward frees it by itself, except after ``set_reshard_after_backward(False)``.
        """
        if run.kind not in ("F", "B") or run.moves is not None or not self.modules[run.index]:
            return
        if following is not None and (following.kind, following.index) == ("B", run.index):
            return
        for module in self.modules[run.index]:
            state = private.state_of(module)
            if run.kind == "F" or private.leaves_gathered(state):
                module.reshard()
            private.forget_smaller_shards(state)

    def gathers(self, program: BlockProgram) -> tuple[int, int, int]:
        """(bytes gathered in a step of `program`, bytes that store-all gathers, number of gathers).

        Every forward gathers, and so does every backward that does not follow its own forward.
        """
        total = number = 0
        for run, before in zip(program.runs, (None, *program.runs), strict=False):
            if run.kind not in ("F", "B") or run.moves is not None or not self.modules[run.index]:
                continue
            if run.kind == "B" and before is not None and before.name == f"F{run.index}":
                continue
            total += self.gathered_bytes[run.index]
            number += 1
        return total, 2 * sum(self.gathered_bytes), number

    def note(self, program: BlockProgram) -> str:
        """The parameters that a schedule gathers, in words."""
        total, least, number = self.gathers(program)
        more = total - least
        again = f"{format_bytes(more)} of it more than store-all does" if more > 0 else "no more"
        return f"gathers parameters {number} times a step, {format_bytes(total)} in all: {again}"


def _runs_at_once(modules: Sequence[nn.Module], calls: Sequence[GroupedCall]) -> bool:
    """Whether each of `modules` is called once, and no part begins between the calls.

    They are gathered at the first call and freed after the last.
    """
    mine = [call for call in calls if call.module in modules]
    return sorted(map(id, modules)) == sorted(id(call.module) for call in mine) and (
        len({call.num_begun for call in mine}) == 1
    )


def _spans(module: nn.Module, parts: Sequence[Part], *, is_root: bool) -> bool:
    """Whether the parameters that `module` gathers are used by more than one part."""
    if is_root and not _has_own(module):
        return False
    below = set(module.modules())
    for part in parts:
        if any(m in below and m is not module for m in part.modules):
            inside = {m for one in part.modules for m in one.modules()}
            if is_root or module not in inside:
                return True
    return False


def _has_own(module: nn.Module) -> bool:
    """Whether `module` gathers parameters that no sharded module below it gathers."""
    below: set[int] = set()
    for child in module.modules():
        if child is not module and private.is_sharded(child):
            below.update(id(p) for p in child.parameters())
    return any(id(p) not in below for p in module.parameters())


def _gathered_bytes(module: Any) -> int:
    return private.gathered_bytes(private.state_of(module))
